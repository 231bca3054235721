"""Output throughput of a leg.

    output_throughput = Σ completion_tokens / T          tok/s
    T = last token of the leg − first send of the leg    (ramp and drain inside, both arms alike)

Tokens are those of `usage`. One request without usage or tokens leaves the leg without a value: a sum over
survivors would reward failing.
"""

from __future__ import annotations

from collections.abc import Sequence

from gate.observe.rows import RequestRow

NS_PER_S = 1_000_000_000


def duration_s(requests: Sequence[RequestRow]) -> float | None:
    """T: first send to last token, in seconds; None when a request has no token or nothing took any time."""
    last = [r.last_token_ns for r in requests if r.last_token_ns is not None]
    if not requests or len(last) < len(requests):
        return None
    duration_ns = max(last) - min(r.sent_ns for r in requests)
    return duration_ns / NS_PER_S if duration_ns > 0 else None


def output_throughput(requests: Sequence[RequestRow]) -> float | None:
    duration = duration_s(requests)
    tokens = [r.completion_tokens for r in requests if r.completion_tokens is not None]
    if duration is None or len(tokens) < len(requests):
        return None
    return sum(tokens) / duration
