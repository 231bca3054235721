"""6 Looks: how the chance of a wrong verdict is split when a gate may look twice.

Without pre-declared extra blocks there is one look at 95 %. With them the first look, after the planned repetitions,
is at 99 %, and the second, after all extra blocks, at 96 %: by Bonferroni the two together err no more often than
one look at 95 %. Most of it is kept for the second, which has more legs; an early decision has to be a plain one.
A cell that is decided at the first look stays as it is.
"""

from __future__ import annotations

from gate.stats.interval import CONFIDENCE

CONFIDENCES = {1: (CONFIDENCE,), 2: (0.99, 0.96)}
"""Looks -> two-sided confidence of each; α of 1 % and 4 % add up to the 5 % of a single look."""


def confidence(look: int, looks: int) -> float:
    """look: 0 for the first; looks: 1, or 2 where extra blocks are declared."""
    return CONFIDENCES[looks][look]
