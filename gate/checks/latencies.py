"""What of a leg's latencies may not change while it is measured, in which requests, and which axes each speaks for.

After a staggered start every request meets the same load from the first send to the last, so each latency is looked at
by itself and speaks for its own axes: a prefill that is bound by the processor can take half as long again while TPOT
stays as it is, and the other way round. After one that begins together TPOT depends on a request's place in its wave;
the median ITL stands in for it, and either latency speaks for the whole leg.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gate.checks.buffered_stream import MAX_TOKENS_PER_READ, tokens_per_read
from gate.checks.evidence import Leg
from gate.metrics.itl import itl_ms
from gate.metrics.tpot import tpot_ms
from gate.metrics.ttft import ttft_ms
from gate.observe.rows import RequestRow
from gate.recipe import Workload
from gate.stats.median import median

Families = tuple[str | None, ...]
"""Of axes; None: all of them."""

OF_BOTH: Families = ("e2el", "output_throughput", "total_throughput", "request_throughput")
"""What holds both prefill and decoding."""


@dataclass(frozen=True, slots=True)
class Latency:
    """One latency of one leg."""

    name: str
    measure: Callable[[RequestRow], float | None]
    requests: tuple[RequestRow, ...]
    """In the order sent."""
    families: Families
    """Of axes that a change of it voids."""


def median_itl_ms(request: RequestRow) -> float | None:
    return median(itl_ms(request))


def observable(leg: Leg) -> bool:
    """Whether token times are the tokens' own; None tokens a read is a leg without a token."""
    lumped = tokens_per_read(leg.requests)
    return lumped is not None and lumped <= MAX_TOKENS_PER_READ


def latencies(leg: Leg, workload: Workload) -> tuple[Latency, ...]:
    """Of a leg with closed-loop arrivals; TTFT first. None where token times are not the tokens' own."""
    if not observable(leg):
        return ()
    requests = tuple(sorted(leg.requests, key=lambda request: request.sent_ns))
    if workload.start == "together":
        return (
            Latency("TTFT", ttft_ms, requests, (None,)),
            Latency("median ITL", median_itl_ms, requests, (None,)),
        )
    under_load = until(requests, requests[-1].sent_ns)
    beside: Families = ("itl",) if leg.row.concurrency > 1 else ()  # a neighbour's prefill is in some of its gaps
    return (
        Latency("TTFT", ttft_ms, requests, ("ttft", *OF_BOTH, *beside)),
        Latency("TPOT", tpot_ms, under_load, ("tpot", *OF_BOTH)),
        Latency("median ITL", median_itl_ms, under_load, ("itl",)),
    )


def until(requests: Sequence[RequestRow], stamp_ns: int) -> tuple[RequestRow, ...]:
    """Those that had half of their tokens by then, with these tokens alone.

    After the last send streams end one by one and leave the others faster: in sound legs at c32 of an H200 the median
    ITL of the later half fell from 14.4 to 9 ms. Of the first few tokens of a request a neighbour's prefill is a large
    part: of 16 tokens and fewer, medians of 14 ms became 21 to 43.
    """
    cut = []
    for request in requests:
        come = sum(stamp <= stamp_ns for stamp in request.token_times_ns)
        if come and 2 * come >= len(request.token_times_ns):
            stamps, tokens = request.token_times_ns[:come], request.tokens_per_event[:come]
            whole = {"token_times_ns": stamps, "tokens_per_event": tokens, "last_token_ns": stamps[-1]}
            cut.append(request.model_copy(update=whole | {"completion_tokens": sum(tokens) or None}))
    return tuple(cut)
