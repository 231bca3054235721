"""6 Holm: which of several cells may be called FAIL together.

    p(1) ≤ … ≤ p(m);  adjusted p(k) = max over j ≤ k of min(1, (m − j + 1) · p(j))

Without it a grid of twelve equal cells would show a false FAIL in one run of four at 2.5 % each. A grid's PASS
needs no correction: it claims every cell at once, and a conjunction is at most as likely as its least likely part.
"""

from __future__ import annotations

from collections.abc import Sequence


def adjusted(p_values: Sequence[float]) -> tuple[float, ...]:
    """Family-wise adjusted p values, in the order given."""
    m = len(p_values)
    result = [0.0] * m
    running = 0.0
    for rank, index in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (m - rank) * p_values[index]))
        result[index] = running
    return tuple(result)
