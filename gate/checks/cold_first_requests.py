"""The first requests of a leg met a cold server.

What it does
    Voids of a closed-loop leg in which each of the first C requests took longer than nine in ten of the later ones, by
    more than a tail may differ, the axes that this latency speaks for: after a staggered start its own, and those that
    hold prefill and decoding both; else all, as for a TTFT beside other streams, which it stops. Each of them: even the
    one that had no other before it in the queue. A leg whose stream was buffered has no latency to look at.
Why
    A CUDA graph captured inside the window has made a TTFT of 42 s, and each concurrency has graphs of its own. A mean
    over such a leg tells how long it was, and a short one is worse.
Deciding numbers
    The least TTFT, and the least median ITL, among the first C requests against the 90th percentile of the later ones:
    at most 3 × protocol.max_spread above it (FACTOR: that of tails, since a single request decides). Not their median:
    on a busy host the one first request at c1 took 145 ms where later ones took 92 to 146. After a staggered start also
    the least TPOT, and TPOT and ITL up to the last send, in requests that had half of their tokens by then.
What to do
    More warm-up at this concurrency (workload.warmup_per_stream); look for what the server does on first use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence
from gate.checks.latencies import latencies
from gate.metrics.ttft import ttft_ms
from gate.observe.rows import Finding
from gate.units import least

CODE = "cold-first-requests"
TIMING_ONLY = True
CONSEQUENCE = True
HINT = "more warm-up at this concurrency (workload.warmup_per_stream)"

FACTOR = 3.0
LATER = 0.9
"""Quantile of the later requests' latencies that the first ones are held against."""


def excess(values: Sequence[float | None], first: int) -> float | None:
    """How far the least of the first so many lies above LATER of the rest, a share. None where either has none."""
    early = [value for value in values[:first] if value is not None]
    rest = [value for value in values[first:] if value is not None]
    later = float(np.quantile(rest, LATER)) if rest else None
    return min(early) / later - 1 if early and later else None


def check(evidence: Evidence) -> Iterator[Finding]:
    workload = evidence.plan.recipe.workload
    if workload.arrival != "closed":
        return
    limit = FACTOR * evidence.plan.recipe.protocol.max_spread
    for leg in evidence.legs:
        looked_at = latencies(leg, workload)
        opening = {request.index for ttft in looked_at[:1] for request in ttft.requests[: leg.row.concurrency]}
        for latency in looked_at:
            first = sum(request.index in opening for request in latency.requests)  # nobody takes the place of one cut
            found = excess([latency.measure(request) for request in latency.requests], first)
            if found is not None and found > limit:
                cold = "request" if leg.row.concurrency == 1 else f"{leg.row.concurrency} requests"
                message = (
                    f"{latency.name} of the first {cold} was {least(100 * found, 1)} % above that of nine in ten of "
                    f"the later ones, or more; expected at most {100 * limit:.0f} %"
                )
                stops_others = latency.measure is ttft_ms and leg.row.concurrency > 1
                for family in (None,) if stops_others else latency.families:
                    yield void_leg(CODE, leg, message, HINT, axis=family, beyond=found / limit)
