"""4 The largest context, and the largest number of sequences, that fit. Pure: need() grows with either."""

from __future__ import annotations

from collections.abc import Callable

from gate.fit.need import Limits, Need

Needs = Callable[[Limits], Need]
MOST_SEQUENCES = 2**20
"""Where a search ends; a model whose sequences take next to nothing has no natural limit."""


def largest_context(needs: Needs, limits: Limits, memory_bytes: int, longest: int) -> int | None:
    """Tokens, up to the model's own limit `longest`; None where not even one token fits."""
    return _last(longest, lambda n: needs(limits.model_copy(update={"context": n})).total <= memory_bytes)


def largest_max_num_seqs(needs: Needs, limits: Limits, memory_bytes: int) -> int | None:
    """Sequences of limits.context tokens each; None where not even one fits."""
    return _last(MOST_SEQUENCES, lambda n: needs(limits.model_copy(update={"max_num_seqs": n})).total <= memory_bytes)


def _last(most: int, holds: Callable[[int], bool]) -> int | None:
    """The last of 1..most for which a predicate holds that never holds again once it does not."""
    if not holds(1):
        return None
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
