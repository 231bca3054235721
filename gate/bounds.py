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


def apart(evidence: Evidence, axis: Axis, concurrency: int, repetitions: int, *, within: bool) -> Apart | None:
    """within: whether something moved within a leg, and not between legs alone.

    None for an axis that is neither a median of requests nor a rate, and where a leg or a figure is missing.
    """
    legs = {arm: evidence.values(axis, concurrency, arm)[:repetitions] for arm in ARMS}
    values = {arm: [value for value in found if value] for arm, found in legs.items()}
    rate = axis.direction == "higher"
    if not (rate or axis.sample) or any(len(values[arm]) < repetitions for arm in ARMS):
        return None
    bounds = []
    if rate:
        bounds.append(ahead(values["candidate"], values["oracle"], "higher"))
    sample = axis.sample if axis.sample is not None else e2el_ms
    if within or not rate:
        for later in (False, True):
            taken = {arm: _taken(evidence, arm, concurrency, repetitions, sample, later=later) for arm in ARMS}
            bounds.append(ahead(taken["candidate"], taken["oracle"], "lower"))
    least = [bound for bound in bounds if bound is not None]
    return Apart(min(least), moved(*values.values())) if len(least) == len(bounds) else None


def _taken(
    evidence: Evidence, arm: Arm, concurrency: int, repetitions: int, sample: Sample, *, later: bool
) -> list[float]:
    """Of all requests of an arm at a level, or of the later half of each leg's."""
    found = []
    for leg in evidence.at(concurrency, arm):
        if leg.row.repetition < repetitions:
            sent = sorted(leg.requests, key=lambda row: row.sent_ns)
            found += [sample(row) for row in (sent[len(sent) // 2 :] if later else sent)]
    return [value for value in found if value is not None]
