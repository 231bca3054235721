"""TTFT, time to first token, of one request.

    ttft_ms = (first_token_ns − t0_ns) / 10^6

t0 is the send of the request; in open loop the scheduled send, so that a late client cannot hide queueing.
first_token is the arrival of the first event that carries generated tokens.
"""

from __future__ import annotations

from gate.metrics.summary import NS_PER_MS
from gate.observe.rows import RequestRow


def start_ns(request: RequestRow) -> int:
    """t0 of TTFT and E2EL."""
    return request.sent_ns if request.scheduled_ns is None else request.scheduled_ns


def ttft_ms(request: RequestRow) -> float | None:
    """None when no token arrived."""
    if request.first_token_ns is None:
        return None
    return (request.first_token_ns - start_ns(request)) / NS_PER_MS
