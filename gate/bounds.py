"""6 Evidence -> by how much the candidate is ahead at least, on an axis whose figures moved. Pure.

A median of requests is bounded by its requests, and again by the later half of each leg's: a latency that still falls
when the leg ends is where it is going, not where it was. A rate is bounded by its legs. Where something moved within a
leg, all of the leg's rate holds it, a first request of 5 s as well; so E2EL, which C streams turn into a rate, must be
as far apart.

Of what decoding is part of, only requests that ended while every stream was busy count for the oracle: after the last
send streams end one by one and leave the others faster. Of a mixture's oracle at c32 of an H200, the last of four waves
had 14 ms a token where the others had 27 to 37; its fast tenth was that wave, whatever its pace under load. The
candidate has to be ahead with these requests of its own and with all.
"""

from __future__ import annotations

from collections.abc import Callable

from gate.checks.evidence import Evidence
from gate.metrics import Axis
from gate.metrics.e2el import e2el_ms
from gate.metrics.ttft import ttft_ms
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
        every, busy = (
            {arm: _taken(evidence, arm, concurrency, repetitions, sample, busy=only) for arm in ARMS}
            for only in (False, sample is not ttft_ms and concurrency > 1)
        )
        for mine in (every["candidate"], busy["candidate"]):
            bounds.append(ahead(_all(mine), _all(busy["oracle"]), rate=False))
            bounds.append(ahead(_later(mine), _later(busy["oracle"]), rate=False))
    return Apart(min(bounds), moved(*values.values()))


def _taken(
    evidence: Evidence, arm: Arm, concurrency: int, repetitions: int, sample: Sample, *, busy: bool
) -> list[Figures]:
    """Of an arm's requests at a level, in the order sent, leg by leg; `busy`: of those that ended by the last send."""
    legs = [leg for leg in evidence.at(concurrency, arm) if leg.row.repetition < repetitions]
    taken = [sorted(leg.requests, key=lambda row: row.sent_ns) for leg in legs]
    return [[sample(row) for row in rows if not busy or _ended_by(rows[-1].sent_ns, row)] for rows in taken]


def _ended_by(stamp_ns: int, row: RequestRow) -> bool:
    return row.end_ns is not None and row.end_ns <= stamp_ns


def _all(legs: list[Figures]) -> Figures:
    return [figure for leg in legs for figure in leg]


def _later(legs: list[Figures]) -> Figures:
    return _all([leg[len(leg) // 2 :] for leg in legs])
