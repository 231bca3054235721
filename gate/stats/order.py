"""6 Order effect: what running first in a repetition adds to an arm, apart from the arm.

    d = e_arm + w   where the candidate ran first          d = e_arm − w   where the oracle did
    w = (mean d where the candidate ran first − mean d where the oracle did) / 2

ABBA keeps w out of the mean paired ratio; with an odd number of repetitions a third of it stays (checks/order_effect.py
says when that is too much). A drift over the run looks like w < 0 for what gets slower.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def effect(candidate_first: Sequence[float], oracle_first: Sequence[float]) -> float | None:
    """w, from the paired log ratios of both kinds of repetition; above 0 the first to run looks better.

    None without a repetition of either kind.
    """
    if not candidate_first or not oracle_first:
        return None
    return (statistics.fmean(candidate_first) - statistics.fmean(oracle_first)) / 2
