"""Decode rate of one request: llama-bench's tg.

    decode_rate = (n − m1) / (t_K − t_1) × 10^9          tok/s

t_1 and t_K are the first and the last read that carried tokens, m1 the tokens of the first, n all of them. What the
prompt cost is before t_1; for tgN the request asks for N + 1 tokens, so N steps are timed.
"""

from __future__ import annotations

from gate.metrics.itl import reads
from gate.observe.rows import RequestRow

NS_PER_S = 1_000_000_000


def decode_rate(request: RequestRow) -> float | None:
    """None for tokens that came in one read, or that nobody counted by event."""
    stamps = reads(request)
    if len(stamps) < 2:
        return None
    (first_ns, _), (last_ns, _) = stamps[0], stamps[-1]
    return sum(tokens for _, tokens in stamps[1:]) / (last_ns - first_ns) * NS_PER_S
