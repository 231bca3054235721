"""Samples -> one number: mean, median, p90, max, p99."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

NS_PER_MS = 1_000_000

MIN_REQUESTS_FOR_P99 = 459
"""Fewest requests from which a 99th percentile can be claimed at 99 % confidence: 0.99^459 < 0.01 (the binomial
early-stopping bound of MLPerf LoadGen, with no overrun). Below it the maximum is printed instead."""

MIN_REQUESTS_FOR_P90 = 10
"""Of fewer samples the nearest rank of 90 % is the last one: the p90 would be the maximum under another name."""


def percentile(samples: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest sample that at least `share` of all samples do not exceed.

    An order statistic, so it is a time that some request really took; interpolation would invent one.
    """
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "p90": lambda samples: percentile(samples, 0.90),
    "p99": lambda samples: percentile(samples, 0.99),
    "max": max,
}
