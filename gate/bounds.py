"""6 Evidence -> by how much the candidate is ahead at least, on an axis whose figures moved. Pure.

A median of requests is bounded by its requests, and again by the later half of each leg's: a latency that still falls
when the leg ends is where it is going, not where it was. A rate is bounded by its legs. Where something moved within a
leg, all of the leg's rate holds it, a first request of 5 s as well; so E2EL, which C streams turn into a rate, must be
as far apart.
"""

from __future__ import annotations

from collections.abc import Callable

from gate.checks.evidence import Evidence
from gate.metrics import Axis
from gate.metrics.e2el import e2el_ms
from gate.observe.rows import ARMS, Arm, RequestRow
from gate.stats.apart import Apart, ahead, moved

Sample = Callable[[RequestRow], float | None]
Figures = list[float | None]
"""Of requests; None where one has not got what the sample needs."""


def apart(evidence: Evidence, axis: Axis, concurrency: int, repetitions: int, *, within: bool) -> Apart | None:
    """within: whether something moved within a leg, and not between legs alone.

    None for an axis that is neither a median of requests nor a rate, and where a leg or a figure is missing.
    """
    legs = {arm: evidence.values(axis, concurrency, arm)[:repetitions] for arm in ARMS}
    values = {arm: [value for value in found if value] for arm, found in legs.items()}
    rate = axis.direction == "higher"
    if not (rate or axis.sample) or any(len(values[arm]) < repetitions for arm in ARMS):
        return None
    bounds = [ahead(values["candidate"], values["oracle"], rate=True)] if rate else []
    if within or not rate:
        sample = axis.sample if axis.sample is not None else e2el_ms
        taken = {arm: _taken(evidence, arm, concurrency, repetitions, sample) for arm in ARMS}
        bounds.append(ahead(_all(taken["candidate"]), _all(taken["oracle"]), rate=False))
        bounds.append(ahead(_later(taken["candidate"]), _later(taken["oracle"]), rate=False))
    return Apart(min(bounds), moved(*values.values()))


def _taken(evidence: Evidence, arm: Arm, concurrency: int, repetitions: int, sample: Sample) -> list[Figures]:
    """Of an arm's requests at a level, in the order sent, leg by leg."""
    legs = [leg for leg in evidence.at(concurrency, arm) if leg.row.repetition < repetitions]
    return [[sample(row) for row in sorted(leg.requests, key=lambda row: row.sent_ns)] for leg in legs]


def _all(legs: list[Figures]) -> Figures:
    return [figure for leg in legs for figure in leg]


def _later(legs: list[Figures]) -> Figures:
    return _all([leg[len(leg) // 2 :] for leg in legs])
