"""The server was still changing while it was measured.

What it does
    Voids of a closed-loop leg over which TTFT, TPOT or the median ITL of a request drifts from the first send to the
    last by more than repetitions may differ, beyond doubt, the axes that this latency speaks for: after a staggered
    start its own, and for TTFT and TPOT those that hold prefill and decoding both; else all. TTFT is that of requests
    whose prompt no other one ran beside: all streams begin at once, and such a queue, which every leg has, is no drift.
    A leg whose stream was buffered has none to look at.
Why
    Clocks that ramp, caches that fill and allocators that grow make a leg's figure depend on its length, and its median
    one of a state that nobody asked for. A small spread does not prove otherwise: it is the same drift each time.
Deciding numbers
    Least-squares slope over the requests' sends × (last send − first send) / mean. The end of its 99 % interval that is
    nearer to zero, at most protocol.max_spread. When streams begin together TPOT depends on the place in the wave, and
    the median ITL stands in for it, since a neighbour's prefill lengthens a few gaps of a request and not their median.
    After a staggered start both are taken up to the last send, since streams that end one by one leave the others
    faster, in requests that had half of their tokens by then. With queued requests among them, TTFT fell by 50 % and
    more over sound legs at c32 of an H200: 118 to 3,117 ms for those that began together, about 410 for those that came
    one by one after them.
What to do
    More warm-up at this concurrency (workload.warmup_per_stream); look at the latencies by send time in the report.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence
from gate.checks.latencies import latencies
from gate.metrics.ttft import ttft_ms
from gate.observe.rows import Finding, RequestRow
from gate.stats.distributions import t_quantile
from gate.units import least

CODE = "warmup-unsettled"
TIMING_ONLY = True
CONSEQUENCE = True
HINT = "more warm-up at this concurrency (workload.warmup_per_stream)"

CONFIDENCE = 0.99
"""A leg has two tests, a run tens of legs: at 95 % one good run in two would lose a leg to chance."""


def drift(points: Sequence[tuple[float, float]]) -> float | None:
    """Drift over the whole range of x as a share of the mean, signed; its end of the interval nearer to zero.

    0 when the interval holds zero. None for fewer than three points, for points at one x, or a mean that is not
    positive.
    """
    n = len(points)
    if n < 3:
        return None
    xs, ys = zip(*points, strict=True)
    mean_x, mean_y = sum(xs) / n, sum(ys) / n
    sxx = sum((x - mean_x) ** 2 for x in xs)
    if sxx <= 0 or mean_y <= 0:
        return None
    slope = sum((x - mean_x) * y for x, y in points) / sxx
    residual = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    half = _critical(n - 2) * math.sqrt(residual / (n - 2) / sxx)
    sure = math.copysign(max(0.0, abs(slope) - half), slope)
    return float(sure * (max(xs) - min(xs)) / mean_y)


def unqueued(requests: Sequence[RequestRow]) -> list[RequestRow]:
    """Those between whose send and first token no other request was between its own."""
    waits = [(r.sent_ns, r.first_token_ns, r) for r in requests if r.first_token_ns is not None]
    waits.sort(key=lambda wait: wait[:2])
    before = accumulate((first for _, first, _ in waits), max, initial=0)  # the last first token of those sent earlier
    following = [*(sent for sent, _, _ in waits[1:]), math.inf]
    return [
        request
        for (sent, first, request), latest, after in zip(waits, before, following, strict=False)
        if latest <= sent and first <= after
    ]


def check(evidence: Evidence) -> Iterator[Finding]:
    workload = evidence.plan.recipe.workload
    if workload.arrival != "closed":
        return  # a queue that builds up is the load's doing
    limit = evidence.plan.recipe.protocol.max_spread
    for leg in evidence.legs:
        for latency in latencies(leg, workload):
            alone = latency.measure is ttft_ms
            requests = unqueued(latency.requests) if alone else latency.requests
            measured = [(request.sent_ns, latency.measure(request)) for request in requests]
            found = drift([(sent, value) for sent, value in measured if value is not None])
            if found is not None and abs(found) > limit:
                message = (
                    f"{latency.name} drifted by at least {least(100 * found, 1, '+')} % over the leg; "
                    f"expected at most {100 * limit:.0f} % either way"
                )
                for family in latency.families:
                    yield void_leg(CODE, leg, message, HINT, axis=family, beyond=abs(found) / limit)


@functools.cache
def _critical(df: int) -> float:
    return t_quantile(0.5 + CONFIDENCE / 2, df)
