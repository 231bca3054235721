"""6, 7 Evidence -> cells: one axis at one concurrency each, with its ratio, its verdict and what it rests on. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from gate import checks, verdict
from gate.bounds import apart
from gate.calibration.apply import Noise
from gate.checks import spread
from gate.checks.clocks_explain import clocks_mhz
from gate.checks.evidence import Evidence
from gate.checks.order_effect import by_first
from gate.checks.readings import readings
from gate.metrics import Axis
from gate.observe.rows import ARMS, Arm, Finding, Verdict
from gate.observe.rundata import RunData
from gate.report.model import Cell, Reason
from gate.stats import modes, order
from gate.stats.cycles import in_cycles
from gate.stats.looks import confidence
from gate.stats.median import median, ratio
from gate.stats.pairs import log_ratios


@dataclass(frozen=True, slots=True)
class Look:
    """A decision and the look that it was taken at."""

    decision: verdict.Decision
    repetitions: int
    """That it rests on, from the first."""
    number: int = 1


Key = tuple[str, int]
"""Axis and concurrency."""
Clocks = dict[tuple[int, Arm], tuple[float | None, ...]]
"""Concurrency and arm -> mean SM clock of each leg, MHz."""


def cells(evidence: Evidence, findings: Sequence[Finding], noise: Noise) -> tuple[Cell, ...]:
    """Every planned cell, decided; primary ones after Holm over all of them."""
    planned = [(axis, concurrency) for concurrency in evidence.concurrencies for axis in evidence.axes(concurrency)]
    looks = _second_look(evidence, planned, findings, noise, _first_look(evidence, planned, findings, noise))
    clocks = _clocks(evidence)
    return tuple(
        _cell(evidence, axis, concurrency, looks[axis.name, concurrency], noise, clocks)
        for axis, concurrency in planned
    )


def main_legs(run: RunData) -> RunData:
    """The run as it was before its extra blocks."""
    planned = {leg.leg_id for leg in run.plan.legs}
    return dataclasses.replace(
        run,
        legs=tuple(leg for leg in run.legs if leg.leg_id in planned),
        requests=tuple(row for row in run.requests if row.leg_id in planned),
        telemetry=tuple(row for row in run.telemetry if row.leg_id in planned),
    )


def _first_look(
    evidence: Evidence, planned: Sequence[tuple[Axis, int]], findings: Sequence[Finding], noise: Noise
) -> dict[Key, Look]:
    level = confidence(0, 2 if evidence.plan.extra_legs else 1)
    extended = any(evidence.extended(c) for c in evidence.concurrencies)
    found = checks.findings(Evidence.of(main_legs(evidence.run))) if extended else findings
    made = {
        (axis.name, c): _decide(evidence, axis, c, found, noise, evidence.repetitions, level) for axis, c in planned
    }
    return {key: Look(one, evidence.repetitions) for key, one in _family(evidence, made).items()}


def _second_look(
    evidence: Evidence,
    planned: Sequence[tuple[Axis, int]],
    findings: Sequence[Finding],
    noise: Noise,
    first: dict[Key, Look],
) -> dict[Key, Look]:
    """What the first look decided stays, and all of it where no extra leg ran; a finding about one voids its cells."""
    made: dict[Key, verdict.Decision] = {}
    for axis, c in planned:
        key = (axis.name, c)
        made[key] = first[key].decision
        if evidence.extended(c) and made[key].verdict is not Verdict.VOID:
            again = _decide(evidence, axis, c, findings, noise, evidence.repetitions_at(c), confidence(1, 2))
            moved = again.verdict is Verdict.VOID or again.apart is not None
            if moved or made[key].verdict is Verdict.INCONCLUSIVE:
                made[key] = again
    judged = _family(evidence, made)
    return {
        key: first[key] if one is first[key].decision else Look(judged[key], evidence.repetitions_at(key[1]), 2)
        for key, one in made.items()
    }


def _family(evidence: Evidence, decisions: dict[Key, verdict.Decision]) -> dict[Key, verdict.Decision]:
    protocol = evidence.plan.recipe.protocol
    primary = [key for key in decisions if key[0] in protocol.primary]
    judged = verdict.family([decisions[key] for key in primary], protocol.floor)
    return decisions | dict(zip(primary, judged, strict=True))


def covers(finding: Finding, concurrency: int, axis: Axis) -> bool:
    """Whether a finding voids this cell. What it does not name, it covers.

    Bad times say nothing about an arm's own memory.
    """
    if axis.name in checks.OWN_MEMORY and not checks.of_memory(finding):
        return False
    return finding.concurrency in (None, concurrency) and finding.axis in (None, axis.name, axis.family)


def _decide(
    evidence: Evidence,
    axis: Axis,
    concurrency: int,
    findings: Sequence[Finding],
    noise: Noise,
    repetitions: int,
    level: float,
) -> verdict.Decision:
    candidate = evidence.values(axis, concurrency, "candidate")[:repetitions]
    oracle = evidence.values(axis, concurrency, "oracle")[:repetitions]
    covering = [finding for finding in findings if covers(finding, concurrency, axis)]
    codes = {finding.code for finding in covering}
    moved, within = codes <= checks.MOVED_CODES, codes != {spread.CODE}
    decision = verdict.cell(
        log_ratios(candidate, oracle, axis.direction),
        ratio(median(candidate), median(oracle), axis.direction),
        planned_pairs=repetitions,
        floor=evidence.plan.recipe.protocol.floor,
        band=noise.band(axis.name, concurrency),
        findings=covering,
        confidence=level,
        apart=apart(evidence, axis, concurrency, repetitions, within=within) if covering and moved else None,
        max_spread=evidence.plan.recipe.protocol.max_spread,
    )
    lacking = [arm for arm, values in (("candidate", candidate), ("oracle", oracle)) if not any(values)]
    if axis.sources and lacking and decision.verdict is Verdict.INCONCLUSIVE:
        return dataclasses.replace(decision, reasons=(_unreadable(axis, lacking),))
    return decision


def _unreadable(axis: Axis, lacking: Sequence[str]) -> Reason:
    message = f"{axis.name} could not be read for the {' or the '.join(lacking)}"
    hint = "docs/metrics.md says where it comes from and when it cannot be had; no other axis rests on it"
    return Reason(code="memory-unreadable", message=message, hint=hint)


@dataclass(frozen=True, slots=True)
class _Beside:
    """What stands beside a ratio and decides nothing."""

    order_effect: float | None = None
    cycles_ratio: float | None = None
    notes: tuple[str, ...] = ()


def _beside(
    evidence: Evidence,
    axis: Axis,
    concurrency: int,
    candidate: Sequence[float | None],
    oracle: Sequence[float | None],
    clocks: Clocks,
) -> _Beside:
    sides = by_first(evidence, concurrency, axis)
    first = order.effect(sides["candidate"], sides["oracle"])
    notes = []
    for arm, values in (("candidate", candidate), ("oracle", oracle)):
        told = modes.note([math.log(value) for value in values if value])
        if told is not None:
            notes.append(f"the {arm}'s legs fall in {told}: their median describes neither")
    return _Beside(
        order_effect=None if first is None else math.expm1(first),
        cycles_ratio=None if axis.sources else _cycles_ratio(axis, concurrency, candidate, oracle, clocks),
        notes=tuple(notes),
    )


def _clocks(evidence: Evidence) -> Clocks:
    taken = readings(evidence)
    return {(c, arm): clocks_mhz(evidence, taken, c, arm) for c in evidence.concurrencies for arm in ARMS}


def _cycles_ratio(
    axis: Axis, concurrency: int, candidate: Sequence[float | None], oracle: Sequence[float | None], clocks: Clocks
) -> float | None:
    medians = []
    for arm, values in zip(ARMS, (candidate, oracle), strict=True):
        of_legs = clocks[concurrency, arm][: len(values)]
        if None in of_legs:
            return None
        medians.append(median(in_cycles(values, of_legs, axis.direction)))
    return ratio(medians[0], medians[1], axis.direction)


def _cell(evidence: Evidence, axis: Axis, concurrency: int, look: Look, noise: Noise, clocks: Clocks) -> Cell:
    decision = look.decision
    candidate = evidence.values(axis, concurrency, "candidate")[: look.repetitions]
    oracle = evidence.values(axis, concurrency, "oracle")[: look.repetitions]
    band = noise.band(axis.name, concurrency)
    void = decision.verdict is Verdict.VOID or decision.apart is not None
    beside = _Beside() if void else _beside(evidence, axis, concurrency, candidate, oracle, clocks)
    medians = (None, None) if void else (median(candidate), median(oracle))
    interval = decision.interval
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
        at_least=None if decision.apart is None else decision.apart.least,
        band=band.share,
        floor=evidence.plan.recipe.protocol.floor,
        verdict=decision.verdict,
        reasons=decision.reasons,
        prior=band.source,
        prior_sd=band.prior_sd,
        prior_df=band.prior_df,
        looks=look.number,
        order_effect=beside.order_effect,
        cycles_ratio=beside.cycles_ratio,
        notes=beside.notes,
    )
