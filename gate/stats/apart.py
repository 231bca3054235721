"""6 Two sets of figures that lie apart: an answer where no ratio can be believed.

Of requests' latencies, or of legs' rates, the slow tenth of the candidate against the fast tenth of the oracle:

    ahead = the oracle's fast tenth / the candidate's slow tenth

direction-normalised, so that 1 or more is at least as good. Fewer than eleven figures have no tenth: then it is all of
them against all of them. It counts where it exceeds what equal repetitions of one arm differed by:

    moved = largest leg / smallest leg − 1, of the arm where it is larger

Rejected: a bound the other way, which says FAIL. Of three legs a side all of one are beyond all of the other's by
chance in 1 of 20 gates, and a FAIL must be rarer than 1 of 40 over all primary cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

TAIL = 0.1


@dataclass(frozen=True, slots=True)
class Apart:
    """By how much the candidate was ahead at least, and what has to be exceeded."""

    least: float
    """A ratio, direction-normalised."""
    moved: float
    """A share."""

    def clears(self, floor: float, max_spread: float) -> bool:
        return self.least >= floor * (1 + max(self.moved, max_spread))


def ahead(candidate: Sequence[float | None], oracle: Sequence[float | None], *, rate: bool) -> float:
    """rate: higher is better. 0, which is ahead of nobody, where a figure is missing or not positive."""
    mine, theirs = _measured(candidate), _measured(oracle)
    if not mine or not theirs:
        return 0.0
    if rate:
        return _tail(mine, high=False) / _tail(theirs, high=True)
    return _tail(theirs, high=False) / _tail(mine, high=True)


def _measured(values: Sequence[float | None]) -> list[float]:
    """All of them, or none."""
    positive = [value for value in values if value is not None and value > 0]
    return positive if len(positive) == len(values) else []


def moved(*arms: Sequence[float]) -> float:
    """legs' values of each arm, all positive."""
    return max(max(legs) / min(legs) - 1 for legs in arms)


def _tail(values: Sequence[float], *, high: bool) -> float:
    """The smallest not in the lower tenth; `high`: the largest not in the upper. One that was measured, outwards
    where the tenth falls between two.
    """
    ordered, last = sorted(values), len(values) - 1
    return ordered[math.ceil((1 - TAIL) * last)] if high else ordered[math.floor(TAIL * last)]
