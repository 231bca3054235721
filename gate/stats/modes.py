"""6 Modes: whether the legs of an arm fall in two separated groups, which no median describes.

Of all splits of the sorted values into two groups, the one with the largest Ashman's D (Ashman, Bird & Zepf 1994) with
the pooled deviation of both groups:

    D = (mean of the upper − mean of the lower) / s          s² = (SS lower + SS upper) / (n − 2)

Two groups are reported where neither is smaller than MIN_GROUP or MIN_SHARE of all legs, and D is above the 99th
percentile of normal noise, simulated for that n: a false alarm in 1 of 100 axes. Fewer than four legs cannot show it:
one value apart from two is an outlier.

So is one odd leg of many, and so are a few: the split that parts them best has too small a group. Over groups of two
or more alone, one odd leg of 34 took a neighbour with it, D = √((n − 2) / 2), and was called a mode.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MIN_GROUP, MIN_SHARE = 2, 0.1
"""Legs of the smaller group, and its share: outside nine in ten is a tail here (stats/apart.py), and no mode."""
D_LIMITS = {4: 17.1, 5: 12.1, 6: 9.3, 8: 6.9, 16: 4.8, 24: 4.2, 48: 3.7}
"""Legs -> 99th percentile of the largest D, 20,000 samples of normal noise; between them by interpolation in log n.
Simulated over groups of two and more: of a tenth, false alarms are fewer, 1 of 200 for 48."""


@dataclass(frozen=True, slots=True)
class Groups:
    low: tuple[float, ...]
    high: tuple[float, ...]
    separation: float
    """D; infinite where both groups are constant."""


def limit(legs: int) -> float:
    sizes = sorted(D_LIMITS)
    if legs >= sizes[-1]:
        return D_LIMITS[sizes[-1]]
    above = next(size for size in sizes if size >= legs)
    below = max(size for size in sizes if size <= legs)
    if above == below:
        return D_LIMITS[above]
    share = math.log(legs / below) / math.log(above / below)
    return D_LIMITS[below] + share * (D_LIMITS[above] - D_LIMITS[below])


def groups(values: Sequence[float]) -> Groups | None:
    """The two groups, or None where one describes them."""
    ordered = sorted(values)
    n = len(ordered)
    if n < 2 * MIN_GROUP:
        return None
    least, parted = max(MIN_GROUP, math.ceil(MIN_SHARE * n)), [_split(ordered, k) for k in range(1, n)]
    best = max(parted, key=lambda found: found.separation)
    smaller = min(len(best.low), len(best.high))
    return best if smaller >= least and best.separation > limit(n) else None


def _split(ordered: Sequence[float], k: int) -> Groups:
    low, high = tuple(ordered[:k]), tuple(ordered[k:])
    apart = statistics.fmean(high) - statistics.fmean(low)
    rest = sum((v - statistics.fmean(group)) ** 2 for group in (low, high) for v in group)
    deviation = math.sqrt(rest / (len(ordered) - 2))
    return Groups(low, high, apart / deviation if deviation > 0 else math.inf)


def note(log_values: Sequence[float]) -> str | None:
    """`two groups 3.1 % apart (5 and 3 legs)` for logarithms of an arm's legs; None where there is one group."""
    found = groups(log_values)
    if found is None:
        return None
    apart = math.expm1(statistics.fmean(found.high) - statistics.fmean(found.low))
    return f"two groups {100 * apart:.1f} % apart ({len(found.low)} and {len(found.high)} legs)"
