"""6 Two sets of figures that lie apart: an answer where no ratio can be believed.

Of requests' latencies, or of legs' rates, the slow tenth of one arm against the fast tenth of the other:

    least = the oracle's fast tenth / the candidate's slow tenth        most = its slow / the candidate's fast tenth

direction-normalised, so that 1 or more is at least as good. Whatever moved within and between legs, nine in ten of the
candidate's were ahead of nine in ten of the oracle's by `least`. Fewer than eleven figures have no tenth: then it is
all of them against all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gate.report.model import Direction

TAIL = 0.1


@dataclass(frozen=True, slots=True)
class Apart:
    """Bounds of the ratio, direction-normalised."""

    least: float
    most: float

    def above(self, limit: float, spread: float) -> bool:
        """By more than equal repetitions may differ: arms that merely do not overlap are not apart."""
        return self.least >= limit * (1 + spread)

    def below(self, limit: float, spread: float) -> bool:
        return self.most < limit / (1 + spread)


def apart(candidate: Sequence[float], oracle: Sequence[float], direction: Direction) -> Apart | None:
    """None without figures of both arms, or with one that is not positive."""
    if not candidate or not oracle or min(*candidate, *oracle) <= 0:
        return None
    mine, theirs = _tails(candidate), _tails(oracle)
    if direction == "lower":
        mine, theirs = theirs, mine
    return Apart(least=mine[0] / theirs[1], most=mine[1] / theirs[0])


def _tails(values: Sequence[float]) -> tuple[float, float]:
    """Low and high end of the inner part, each of them a value that was measured, outwards where it falls between."""
    ordered, last = sorted(values), len(values) - 1
    return ordered[math.floor(TAIL * last)], ordered[math.ceil((1 - TAIL) * last)]
