"""6 Legs -> paired log ratios, in block order.

    d_i = ln(candidate_i / oracle_i)        higher is better
    d_i = ln(oracle_i / candidate_i)        lower is better

A pair is one repetition: both arms ran next to each other with the same prompts, so what drifts slowly cancels.
Logarithms make A/B and B/A mirror images: swapping the arms changes the sign and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gate.report.model import Direction


def log_ratios(
    candidate: Sequence[float | None], oracle: Sequence[float | None], direction: Direction
) -> tuple[float, ...]:
    """One per repetition in which both arms have a positive value; ≥ 0 means the candidate is at least as good.

    Raises:
        ValueError: the arms have different numbers of repetitions.
    """
    pairs = [
        (c, o) for c, o in zip(candidate, oracle, strict=True) if c is not None and o is not None and c > 0 and o > 0
    ]
    sign = 1.0 if direction == "higher" else -1.0
    return tuple(sign * (math.log(c) - math.log(o)) for c, o in pairs)
