"""TPOT, time per output token after the first, of one request.

    tpot_ms = (last_token_ns − first_token_ns) / (n − 1) / 10^6        for n > 1

n is `usage.completion_tokens`, never a count of chunks and never the number that was asked for. Where the first
event carries several tokens the formula still divides by n − 1; checks/buffered_stream.py voids a stream in which
that matters.
"""

from __future__ import annotations

from gate.metrics.summary import NS_PER_MS
from gate.observe.rows import RequestRow


def tpot_ms(request: RequestRow) -> float | None:
    """None for a request of fewer than two tokens, without usage, or without tokens."""
    n = request.completion_tokens
    if n is None or n < 2 or request.first_token_ns is None or request.last_token_ns is None:
        return None
    return (request.last_token_ns - request.first_token_ns) / (n - 1) / NS_PER_MS
