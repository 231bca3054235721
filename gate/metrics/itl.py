"""ITL, inter-token latency: the gaps between the tokens of one request.

    for each read k ≥ 2 that carried m_k tokens:   m_k gaps of (t_k − t_{k−1}) / m_k / 10^6 ms

Events that arrived in one read share a stamp and count as one read: otherwise a batched write would produce gaps
of zero and one long one. The tokens of the first read have no gap. A leg pools the gaps of all its requests.
"""

from __future__ import annotations

from itertools import groupby, pairwise

from gate.metrics.summary import NS_PER_MS
from gate.observe.rows import RequestRow


def reads(request: RequestRow) -> tuple[tuple[int, int], ...]:
    """(stamp in ns, tokens) of each read that carried tokens, in order.

    Empty where nobody knows how many tokens each event carried: the server returns neither ids nor running usage.
    """
    if len(request.token_times_ns) != len(request.tokens_per_event):
        return ()
    events = zip(request.token_times_ns, request.tokens_per_event, strict=True)
    return tuple((stamp, sum(tokens for _, tokens in group)) for stamp, group in groupby(events, key=lambda e: e[0]))


def itl_ms(request: RequestRow) -> tuple[float, ...]:
    """Empty for a request whose tokens came in one read."""
    gaps: list[float] = []
    for (before, _), (now, tokens) in pairwise(reads(request)):
        gaps += [(now - before) / tokens / NS_PER_MS] * tokens
    return tuple(gaps)
