"""E2EL, end-to-end latency, of one request.

    e2el_ms = (last_token_ns − t0_ns) / 10^6

Ends with the last generated token, not with usage, [DONE] or the closing of the socket. t0 as in ttft.py.
"""

from __future__ import annotations

from gate.metrics.summary import NS_PER_MS
from gate.metrics.ttft import start_ns
from gate.observe.rows import RequestRow


def e2el_ms(request: RequestRow) -> float | None:
    """None when no token arrived."""
    if request.last_token_ns is None:
        return None
    return (request.last_token_ns - start_ns(request)) / NS_PER_MS
