"""6 One position's gap -> right, near tie, undecided or wrong; and the bounds that say so. Pure.

    gap = highest log-prob − log-prob of the candidate's id        nats, by the oracle, on the candidate's own prefix

Every position stands on its own prefix, so what follows a divergence is not charged for it, and a second real error
later in the sequence is still seen.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from gate.tokens.noise import FAULT

CEILING_NATS = 0.5
"""No own spread widens the bound beyond it. Twice the largest gap that earlier gates recorded between two correct
engines (0.25), and the fixed threshold that they passed everything under. An oracle that differs from itself by more
is no yardstick for what lies between."""


SPREAD_FACTOR = FAULT
"""A gap is wrong by itself only beyond so many times the bound's floor, or the largest of the oracle's own where that
is larger: it takes rounding twice as coarse. The candidate's largest gap is the maximum of another and often larger
sample, so it may exceed the oracle's own without any fault."""


class Mark(enum.StrEnum):
    RIGHT = "right"
    """The oracle's own choice, or a member of an exact tie."""
    NEAR_TIE = "near tie"
    UNDECIDED = "undecided"
    """Beyond the bound, but not wrong by itself: all such sequences are judged together (noise.py)."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Bounds:
    near_nats: float
    """Up to here a gap is a near tie."""
    wrong_nats: float
    """Above it a gap is wrong; infinite where the oracle's own ids are outside its own top."""


def bounds(floor_nats: float, own_nats: float | None, own_outside_top: int, agrees: bool | None) -> Bounds:
    """The floor, widened by what the oracle itself does.

    A bound above the floor has to be earned: only where the oracle's own runs of this very prompt disagree, and up to
    CEILING_NATS. What lies above the bound is wrong by itself only if it is also beyond SPREAD_FACTOR times the floor
    and times what the oracle's own ids are off by the same measure: one-shot and incremental decode round differently,
    and that is not the candidate's doing. The floor is in it because the largest of a few own sequences says little.

    own_nats: largest gap of the oracle's own ids in the whole run, None where not measured. agrees: None where it ran
    once.
    """
    own = own_nats or 0.0
    near = max(floor_nats, min(own, CEILING_NATS)) if agrees is False else floor_nats
    return Bounds(near, math.inf if own_outside_top else max(near, SPREAD_FACTOR * max(floor_nats, own)))


def mark(gap_nats: float | None, limits: Bounds) -> Mark:
    """gap_nats: None is outside the oracle's top, which is farther than any figure."""
    if gap_nats is None:
        return Mark.UNDECIDED if math.isinf(limits.wrong_nats) else Mark.WRONG
    if gap_nats <= 0.0:
        return Mark.RIGHT
    if gap_nats <= limits.near_nats:
        return Mark.NEAR_TIE
    return Mark.UNDECIDED if gap_nats <= limits.wrong_nats else Mark.WRONG
