"""The first requests of a leg met a cold server.

What it does
    Voids a closed-loop leg in which each of the first C requests took longer than the later ones, by more than a tail
    may differ. Each of them: even the one that had no other before it in the queue. A leg whose stream was buffered has
    neither latency to look at.
Why
    A CUDA graph captured inside the window has made a TTFT of 42 s, and each concurrency has graphs of its own. A mean
    over such a leg tells how long it was, and a short one is worse.
Deciding numbers
    The least TTFT, and the least median ITL, among the first C requests against the median of the later ones: at most
    3 × protocol.max_spread above it (FACTOR: that of tails, since a single request decides).
What to do
    More warm-up at this concurrency (workload.warmup_per_stream); look for what the server does on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gate.checks.base import void_leg
from gate.checks.buffered_stream import MAX_TOKENS_PER_READ, tokens_per_read
from gate.checks.evidence import Evidence, Leg
from gate.metrics.itl import itl_ms
from gate.metrics.ttft import ttft_ms
from gate.observe.rows import Finding, RequestRow
from gate.stats.median import median

CODE = "cold-first-requests"
TIMING_ONLY = True
CONSEQUENCE = True
HINT = "more warm-up at this concurrency (workload.warmup_per_stream)"

FACTOR = 3.0


def median_itl_ms(request: RequestRow) -> float | None:
    return median(itl_ms(request))


MEASURES: dict[str, Callable[[RequestRow], float | None]] = {"TTFT": ttft_ms, "median ITL": median_itl_ms}


def observable(leg: Leg) -> bool:
    """Whether token times are the tokens' own; None tokens a read is a leg without a token."""
    lumped = tokens_per_read(leg.requests)
    return lumped is not None and lumped <= MAX_TOKENS_PER_READ


def excess(values: Sequence[float | None], first: int) -> float | None:
    """How far the least of the first so many lies above the median of the rest, a share. None where either has none."""
    early = [value for value in values[:first] if value is not None]
    later = median(values[first:])
    return min(early) / later - 1 if early and later else None


def check(evidence: Evidence) -> Iterator[Finding]:
    if evidence.plan.recipe.workload.arrival != "closed":
        return
    limit = FACTOR * evidence.plan.recipe.protocol.max_spread
    for leg in [leg for leg in evidence.legs if observable(leg)]:
        requests = sorted(leg.requests, key=lambda request: request.sent_ns)
        for name, measure in MEASURES.items():
            found = excess([measure(request) for request in requests], leg.row.concurrency)
            if found is not None and found > limit:
                cold = "request" if leg.row.concurrency == 1 else f"{leg.row.concurrency} requests"
                message = (
                    f"{name} of the first {cold} was {100 * found:.0f} % above that of the "
                    f"later ones, or more; expected at most {100 * limit:.0f} %"
                )
                yield void_leg(CODE, leg, message, HINT, beyond=found / limit)
