"""7 Starts -> cells and a verdict, by the rule of `gate run`: medians, ratio, interval, floor less band. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gate import verdict
from gate.metrics.startup import DECIDES, START_AXES, proven
from gate.observe.rows import ARMS, Arm, Finding, StartRow, Verdict
from gate.report.model import Cell, Reason
from gate.startup.record import StartupPlan, StartupReport
from gate.stats import band as bands
from gate.stats.median import median, ratio
from gate.stats.pairs import log_ratios
from gate.units import gib

ANEW = "gate startup begins anew: it is not resumed"
UNPROVEN, FAILED, UNEQUAL = "page-cache-unproven", "start-failed", "page-cache-unequal"


def judge(
    about: StartupPlan, starts: Sequence[StartRow], preflight: Sequence[Finding], ended: str | None = None
) -> StartupReport:
    """ended: why it ended early."""
    findings = (*(finding for start in starts for finding in faults(start)), *unequal(starts))
    cells = tuple(_cell(about, axis, starts, findings) for axis in START_AXES)
    decided = next(cell.verdict for cell in cells if cell.primary)
    return StartupReport(
        name=about.name,
        host=about.host,
        recipe=about.plan.recipe.name,
        started_at=about.started_at,
        machine=about.machine,
        wanted_cache=about.wanted_cache,
        repetitions=about.plan.recipe.protocol.repetitions,
        unfinished=len(starts) < len(ARMS) * about.plan.recipe.protocol.repetitions,
        ended=ended,
        starts=tuple(starts),
        cells=cells,
        findings=(*preflight, *findings),
        verdict=decided,
        exit_code=verdict.EXIT_CODES[decided],
    )


def faults(start: StartRow) -> tuple[Finding, ...]:
    """Why this start has no figures; nothing for a good one."""
    where = f"start {start.repetition} of the {start.arm}"
    if start.error is not None:
        hint = "read its log; the first request must be answered"
        return (Finding(code=FAILED, message=f"{where}: {start.error}", hint=hint, arm=start.arm),)
    if proven(start):
        return ()
    held = f"{gib(start.checkpoint_resident_bytes)} of {gib(start.checkpoint_files_bytes)} in the page cache"
    return (
        Finding(
            code=UNPROVEN,
            message=f"{where} was to be {start.wanted_cache} and is {start.page_cache or 'unknown'}: {held}",
            hint="something holds the files, or their file system has its own cache; --warm needs memory for all",
            arm=start.arm,
        ),
    )


def unequal(starts: Sequence[StartRow]) -> tuple[Finding, ...]:
    """Repetitions of which one arm found the checkpoint in the page cache and the other did not: seconds, of neither.

    As found, the first start of all reads the files in for the one after it.
    """
    found: dict[int, dict[Arm, StartRow]] = {}
    for start in starts:
        found.setdefault(start.repetition, {})[start.arm] = start
    made = []
    for repetition, pair in found.items():
        told = {arm: start.page_cache for arm, start in pair.items() if start.wanted_cache is None}
        if len(told) == 2 and told["candidate"] != told["oracle"]:
            said = " and ".join(f"{told[arm] or 'unknown'} for the {arm}" for arm in ARMS)
            message = f"starts {repetition}: the checkpoint was {said}"
            made.append(Finding(code=UNEQUAL, message=message, hint="--warm or --cold makes both starts alike"))
    return tuple(made)


def _cell(about: StartupPlan, axis: str, starts: Sequence[StartRow], findings: Sequence[Finding]) -> Cell:
    protocol = about.plan.recipe.protocol
    candidate, oracle = (_values(axis, arm, starts, protocol.repetitions) for arm in ("candidate", "oracle"))
    band = bands.assumed(protocol.band)
    decision = verdict.cell(
        log_ratios(candidate, oracle, "lower"),
        ratio(median(candidate), median(oracle), "lower"),
        planned_pairs=protocol.repetitions,
        floor=protocol.floor,
        band=band,
        findings=findings,
    )
    void = decision.verdict is Verdict.VOID
    medians = (None, None) if void else (median(candidate), median(oracle))
    interval = None if void else decision.interval
    return Cell(
        axis=axis,
        concurrency=1,
        unit="s",
        direction="lower",
        primary=axis == DECIDES,
        candidate_values=candidate,
        oracle_values=oracle,
        candidate_median=medians[0],
        oracle_median=medians[1],
        ratio=ratio(*medians, "lower"),
        ratio_low=None if interval is None else math.exp(interval.low),
        ratio_high=None if interval is None else math.exp(interval.high),
        band=band.share,
        floor=protocol.floor,
        verdict=decision.verdict,
        reasons=tuple(_not_resumed(reason) for reason in decision.reasons),
    )


def _not_resumed(reason: Reason) -> Reason:
    """The rule is that of runs, which can go on; start-ups cannot."""
    return reason.model_copy(update={"hint": ANEW}) if reason.hint == verdict.RESUME else reason


def _values(axis: str, arm: Arm, starts: Sequence[StartRow], repetitions: int) -> tuple[float | None, ...]:
    found = {start.repetition: START_AXES[axis](start) for start in starts if start.arm == arm}
    return tuple(found.get(repetition) for repetition in range(repetitions))
