"""6, 7 Evidence -> cells: one axis at one concurrency each, with its ratio, its verdict and what it rests on. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from gate import checks, verdict
from gate.calibration.apply import Noise
from gate.checks.evidence import Evidence
from gate.metrics import Axis
from gate.observe.rows import Finding, Verdict
from gate.report.model import Cell, Reason
from gate.stats.median import median, ratio
from gate.stats.pairs import log_ratios


def cells(evidence: Evidence, findings: Sequence[Finding], noise: Noise) -> tuple[Cell, ...]:
    """Every planned cell, decided; primary ones after Holm over all of them."""
    protocol = evidence.plan.recipe.protocol
    planned = [(axis, concurrency) for concurrency in evidence.concurrencies for axis in evidence.axes(concurrency)]
    decisions = {
        (axis.name, concurrency): _decide(evidence, axis, concurrency, findings, noise) for axis, concurrency in planned
    }
    primary = [key for key in decisions if key[0] in protocol.primary]
    decisions |= zip(primary, verdict.family([decisions[key] for key in primary], protocol.floor), strict=True)
    return tuple(
        _cell(evidence, axis, concurrency, decisions[axis.name, concurrency], noise) for axis, concurrency in planned
    )


def covers(finding: Finding, concurrency: int, axis: Axis) -> bool:
    """Whether a finding voids this cell. What it does not name, it covers.

    Bad times say nothing about an arm's own memory.
    """
    if axis.sources and not axis.shared and finding.axis is None and finding.code in checks.TIMING_ONLY_CODES:
        return False
    return finding.concurrency in (None, concurrency) and finding.axis in (None, axis.name, axis.family)


def _decide(
    evidence: Evidence, axis: Axis, concurrency: int, findings: Sequence[Finding], noise: Noise
) -> verdict.Decision:
    candidate = evidence.values(axis, concurrency, "candidate")
    oracle = evidence.values(axis, concurrency, "oracle")
    decision = verdict.cell(
        log_ratios(candidate, oracle, axis.direction),
        ratio(median(candidate), median(oracle), axis.direction),
        planned_pairs=evidence.repetitions,
        floor=evidence.plan.recipe.protocol.floor,
        band=noise.band(axis.name, concurrency),
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


def _cell(evidence: Evidence, axis: Axis, concurrency: int, decision: verdict.Decision, noise: Noise) -> Cell:
    candidate = evidence.values(axis, concurrency, "candidate")
    oracle = evidence.values(axis, concurrency, "oracle")
    band = noise.band(axis.name, concurrency)
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
        prior=band.source,
        prior_sd=band.prior_sd,
        prior_df=band.prior_df,
    )
