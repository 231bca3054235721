"""6 The binding estimate: the ratio of the two arms' medians, direction-normalised.

r = median(candidate) / median(oracle)        higher is better
r = median(oracle) / median(candidate)        lower is better
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from gate.report.model import Direction


def median(values: Sequence[float | None]) -> float | None:
    """Over what was measured; None when nothing was."""
    measured = [value for value in values if value is not None]
    return statistics.median(measured) if measured else None


def ratio(candidate_median: float | None, oracle_median: float | None, direction: Direction) -> float | None:
    """≥ 1 means the candidate is at least as good. None unless both medians are positive.

    A latency of zero is a broken stamp, not an infinitely good engine.
    """
    if candidate_median is None or oracle_median is None or candidate_median <= 0 or oracle_median <= 0:
        return None
    return candidate_median / oracle_median if direction == "higher" else oracle_median / candidate_median
