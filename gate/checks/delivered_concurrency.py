"""The load that reached the server is not the load that was asked for.

What it does
    Recomputes the requests in flight from the client's stamps (half-open intervals [sent, stream end)) and voids a
    closed-loop leg whose peak is not min(C, N), or whose mean between the C-th and the last send falls short of C.
Why
    A semaphore in a harness has driven both arms at a fifth of the load and called the difference a regression;
    clients off by one are common. The flag is not the load.
Deciding numbers
    Peak in flight, which must equal min(C, N); time-weighted mean in flight while requests were left to send, at
    least 95 % of C (MIN_MEAN_SHARE: the rest is the client's turn-around between two requests).
What to do
    Look at the client's loop lag and CPU share, and for a connection limit between client and server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence
from gate.observe.rows import Finding, RequestRow
from gate.units import counted

CODE = "delivered-concurrency"
TIMING_ONLY = False
CONSEQUENCE = True
HINT = "look for a connection limit between client and server, and at the client's loop lag"

MIN_MEAN_SHARE = 0.95


def in_flight(requests: Sequence[RequestRow]) -> list[tuple[int, int]]:
    """(stamp in ns, requests in flight from then on), in time order. At equal stamps an end comes before a start."""
    changes: list[tuple[int, int]] = []
    for request in requests:
        end = request.end_ns if request.end_ns is not None else request.last_token_ns
        if end is not None and end > request.sent_ns:
            changes += [(request.sent_ns, 1), (end, -1)]
    level, steps = 0, []
    for stamp, change in sorted(changes):
        level += change
        steps.append((stamp, level))
    return steps


def peak(requests: Sequence[RequestRow]) -> int:
    return max((level for _, level in in_flight(requests)), default=0)


def mean_while_sending(requests: Sequence[RequestRow], concurrency: int) -> float | None:
    """Time-weighted mean in flight from the C-th to the last send; None when nothing is sent after the ramp."""
    sends = sorted(request.sent_ns for request in requests)
    if len(sends) <= concurrency:
        return None
    start, end = sends[concurrency - 1], sends[-1]
    if end <= start:
        return None
    area = sum(
        level * max(0, min(later, end) - max(stamp, start))
        for (stamp, level), (later, _) in pairwise(in_flight(requests))
    )
    return area / (end - start)


def check(evidence: Evidence) -> Iterator[Finding]:
    if evidence.plan.recipe.workload.arrival != "closed":
        return
    for leg in evidence.legs:
        asked = min(leg.row.concurrency, leg.planned.requests)
        found = peak(leg.requests)
        if found != asked:
            yield void_leg(CODE, leg, f"peak of {counted(found, 'request')} in flight; expected exactly {asked}", HINT)
            continue
        mean = mean_while_sending(leg.requests, asked)
        if mean is not None and mean < MIN_MEAN_SHARE * asked:
            least = MIN_MEAN_SHARE * asked
            message = f"mean of {mean:.2f} requests in flight while sending; expected at least {least:.2f}"
            yield void_leg(CODE, leg, message, HINT, beyond=least / mean if mean else None)
