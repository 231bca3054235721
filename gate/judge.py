"""5 to 7 Raw records -> Report. Pure: checks, metrics, statistics, tokens, verdict, in that order.

The same records give the same report, whenever `gate report` is asked.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Sequence

from gate import binding, checks, verdict
from gate.checks.evidence import Evidence
from gate.errors import UsageError
from gate.metrics import AXIS_NAMES, Axis
from gate.observe.rows import Arm, Finding, Verdict
from gate.observe.rundata import RunData
from gate.report.model import ArmSummary, Cell, Divergence, Reason, Report, TokenCell
from gate.stats import band as bands
from gate.stats.median import median, ratio
from gate.stats.pairs import log_ratios
from gate.tokens.compare import compare, pair_up


def judge(run: RunData) -> Report:
    """Judge one run, complete or not.

    Raises:
        UsageError: the recipe declares a primary axis that does not exist.
        StorageError: the records are not those of the plan.
    """
    evidence = Evidence.of(run)
    protocol = run.plan.recipe.protocol
    _known(protocol.primary)
    band = bands.assumed(protocol.band)
    found = checks.findings(evidence)
    cells = _cells(evidence, found, band)
    token_cells, divergences = _tokens(evidence, found)
    not_binding = tuple(binding.missing(evidence, band))
    decided = verdict.grid(cells, token_cells)
    return Report(
        run_id=run.run_id,
        plan_id=run.plan.plan_id,
        recipe=run.plan.recipe.name,
        host=run.host,
        started_at=run.started_at,
        finished_at=run.finished_at,
        complete=run.finished_at is not None and not evidence.missing,
        binding=not not_binding,
        not_binding_because=not_binding,
        verdict=decided,
        exit_code=verdict.EXIT_CODES[decided],
        candidate=_summary(evidence, "candidate"),
        oracle=_summary(evidence, "oracle"),
        machine=run.machine,
        client=run.client,
        concurrencies=evidence.concurrencies,
        repetitions=evidence.repetitions,
        order=tuple(leg.name for leg in evidence.legs),
        cells=cells,
        tokens=token_cells,
        divergences=divergences,
        findings=(*run.preflight, *found),
        counts={kind.value: sum(c.verdict is kind for c in cells) for kind in Verdict},
    )


def covers(finding: Finding, concurrency: int, axis: Axis) -> bool:
    """Whether a finding voids this cell. What it does not name, it covers.

    Bad times say nothing about an arm's own memory.
    """
    if axis.sources and not axis.shared and finding.axis is None and finding.code in checks.TIMING_ONLY_CODES:
        return False
    return finding.concurrency in (None, concurrency) and finding.axis in (None, axis.name, axis.family)


def _known(primary: Sequence[str]) -> None:
    for name in primary:
        if name not in AXIS_NAMES:
            nearest = difflib.get_close_matches(name, AXIS_NAMES, 1)
            hint = f"did you mean {nearest[0]}?" if nearest else "see docs/metrics.md"
            raise UsageError(
                f"primary axis {name} does not exist", expected=f"one of {len(AXIS_NAMES)} axes", hint=hint
            )


def _cells(evidence: Evidence, findings: Sequence[Finding], band: bands.Band) -> tuple[Cell, ...]:
    protocol = evidence.plan.recipe.protocol
    planned = [(axis, concurrency) for concurrency in evidence.concurrencies for axis in evidence.axes(concurrency)]
    decisions = {
        (axis.name, concurrency): _decide(evidence, axis, concurrency, findings, band) for axis, concurrency in planned
    }
    primary = [key for key in decisions if key[0] in protocol.primary]
    decisions |= zip(primary, verdict.family([decisions[key] for key in primary], protocol.floor), strict=True)
    return tuple(
        _cell(evidence, axis, concurrency, decisions[axis.name, concurrency], band) for axis, concurrency in planned
    )


def _decide(
    evidence: Evidence, axis: Axis, concurrency: int, findings: Sequence[Finding], band: bands.Band
) -> verdict.Decision:
    candidate = evidence.values(axis, concurrency, "candidate")
    oracle = evidence.values(axis, concurrency, "oracle")
    decision = verdict.cell(
        log_ratios(candidate, oracle, axis.direction),
        ratio(median(candidate), median(oracle), axis.direction),
        planned_pairs=evidence.repetitions,
        floor=evidence.plan.recipe.protocol.floor,
        band=band,
        findings=[finding for finding in findings if covers(finding, concurrency, axis)],
    )
    lacking = [arm for arm, values in (("candidate", candidate), ("oracle", oracle)) if not any(values)]
    if axis.sources and lacking and decision.verdict is Verdict.INCONCLUSIVE:
        return dataclasses.replace(decision, reasons=(_unreadable(axis, lacking),))
    return decision


def _unreadable(axis: Axis, lacking: Sequence[str]) -> Reason:
    message = f"{axis.name} could not be read for the {' or the '.join(lacking)}"
    hint = "docs/metrics.md says where it comes from and when it cannot be had; no other axis rests on it"
    return Reason(code="memory-unreadable", message=message, hint=hint)


def _cell(evidence: Evidence, axis: Axis, concurrency: int, decision: verdict.Decision, band: bands.Band) -> Cell:
    candidate = evidence.values(axis, concurrency, "candidate")
    oracle = evidence.values(axis, concurrency, "oracle")
    void = decision.verdict is Verdict.VOID
    medians = (None, None) if void else (median(candidate), median(oracle))
    interval = None if void else decision.interval
    return Cell(
        axis=axis.name,
        concurrency=concurrency,
        unit=axis.unit,
        direction=axis.direction,
        primary=axis.name in evidence.plan.recipe.protocol.primary,
        candidate_values=candidate,
        oracle_values=oracle,
        candidate_median=medians[0],
        oracle_median=medians[1],
        ratio=ratio(*medians, axis.direction),
        ratio_low=None if interval is None else math.exp(interval.low),
        ratio_high=None if interval is None else math.exp(interval.high),
        band=band.share,
        floor=evidence.plan.recipe.protocol.floor,
        verdict=decision.verdict,
        reasons=decision.reasons,
    )


def _tokens(evidence: Evidence, findings: Sequence[Finding]) -> tuple[tuple[TokenCell, ...], tuple[Divergence, ...]]:
    bound = evidence.plan.recipe.protocol.near_tie_nats
    cells: list[TokenCell] = []
    divergences: list[Divergence] = []
    for concurrency in evidence.concurrencies:
        pairs = [
            pair
            for candidate, oracle in evidence.pairs(concurrency)
            for pair in pair_up(candidate.requests, oracle.requests)
        ]
        found = compare(pairs, evidence.run.margins, bound)
        covering = [
            finding
            for finding in findings
            if finding.concurrency in (None, concurrency) and finding.code not in checks.TIMING_ONLY_CODES
        ]
        planned = evidence.requests_per_leg(concurrency) * evidence.repetitions
        decision = verdict.tokens(
            found,
            planned=planned,
            findings=covering,
            bound_nats=bound,
            finished=evidence.run.finished_at is not None,
        )
        divergences += found.divergences
        cells.append(
            TokenCell(
                concurrency=concurrency,
                sequences=found.sequences,
                exact=found.exact,
                near_tie=found.near_tie,
                diverged=found.diverged,
                unjudged=found.unjudged,
                max_margin_nats=found.max_margin_nats,
                bound_nats=bound,
                verdict=decision.verdict,
                reasons=decision.reasons,
            )
        )
    return tuple(cells), tuple(divergences)


def _summary(evidence: Evidence, arm: Arm) -> ArmSummary:
    plan, identity = evidence.arm_plan(arm), evidence.identity(arm)
    names = {"url": plan.url, "command": " ".join(plan.argv or ())}
    return ArmSummary(
        name=names.get(plan.kind, plan.kind),
        version=identity.version if identity else None,
        argv=plan.argv,
        url=plan.url,
        checkpoint=plan.checkpoint,
        checkpoint_digest=plan.checkpoint_digest,
        kv_cache_dtype=identity.kv_cache_dtype if identity else None,
    )
