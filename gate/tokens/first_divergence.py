"""Two sequences of token ids -> the position of their first difference.

After it the sequences continue different texts, and every later difference is a consequence: a sequence has one
divergence at most.
"""

from __future__ import annotations

from collections.abc import Sequence


def first_divergence(candidate: Sequence[int], oracle: Sequence[int]) -> int | None:
    """Output position from 0; None when they are equal.

    Raises:
        ValueError: one is a prefix of the other. Length is judged by checks/output_length.py, before tokens are.
    """
    for position, (ours, theirs) in enumerate(zip(candidate, oracle, strict=False)):
        if ours != theirs:
            return position
    if len(candidate) != len(oracle):
        raise ValueError(f"sequences of {len(candidate)} and {len(oracle)} tokens without a difference before the end")
    return None
