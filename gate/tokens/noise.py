"""6 How much noisier the candidate's ids are than the oracle's own, from the gaps of whole sequences. Pure.

    bulk = √(mean over sequences of the mean gap, candidate / oracle)
    tail =   mean over sequences of the largest gap, candidate / oracle

Two kernels that round differently shift the difference of two close log-probs by an amount of standard deviation σ. An
id other than the judge's own is taken where that shift exceeds a lead; leads near 0 are evenly spread, so the chance of
it grows with σ and its gap with σ: the mean gap with σ², the largest with σ. Both ratios estimate the same
σ(candidate) / σ(oracle); the bulk sees a little everywhere, the tail a lot in few places.

The sequence is the unit, since its positions share a prefix. Interval: the relative variance of a sequence's figure,
pooled over both arms, on the logarithm of the ratio (delta method), Student's t with all sequences less two. Few
sequences of either arm widen it and never move it. The largest gap grows with the length of a sequence: both arms' are
to be of equal lengths.

Rejected: comparing maxima. Of n own and m sequences of equal noise, the largest gap is the candidate's with probability
m / (n + m). Rejected too: an exact test for equal shares of sequences beyond the bound. With few own sequences it
rejects nobody, and with many everybody who rounds differently from the oracle.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Iterable, Sequence

from gate.observe.tokenrows import ForcedRow
from gate.report.model import Interval, Noise
from gate.stats.distributions import t_quantile

CONFIDENCE = 0.95
"""Two-sided; each verdict uses one end of it."""

ALLOWED = math.sqrt(2.0)
"""The oracle's own gaps are the difference of its two ways, one-shot and step by step, which share kernels: what both
round alike cancels. Where half of a rounding's variance is common to them, another set of kernels that rounds as finely
has √2 times their noise."""

FAULT = 2.0
"""Noise beyond it is rounding twice as coarse, and no other order of the same sums."""

WIDEST = 10.0
"""Half an interval of a log ratio, at most."""


class Loud(enum.StrEnum):
    """What a level's noise says of the candidate."""

    NO = "as quiet as another correct rounding"
    UNKNOWN = "undecided"
    YES = "no rounding is as coarse"


def loud(level: Noise, run: Noise | None) -> Loud:
    """YES where one figure of the level is above FAULT with its whole interval. NO where both are up to ALLOWED with
    theirs; where a level has too few sequences to say, that of all levels together decides, unless the level is
    measurably noisier than they are.

    run: of all levels together.
    """
    if max(level.bulk.low, level.tail.low) > FAULT:
        return Loud.YES
    bulk = _quiet(level.bulk, None if run is None else run.bulk)
    return Loud.NO if bulk and _quiet(level.tail, None if run is None else run.tail) else Loud.UNKNOWN


def _quiet(here: Interval, everywhere: Interval | None) -> bool:
    if here.high <= ALLOWED:
        return True
    return everywhere is not None and everywhere.high <= ALLOWED and here.low <= everywhere.value


def noise(candidate: Iterable[ForcedRow], own: Iterable[ForcedRow]) -> Noise | None:
    """None where a ratio has no meaning: without three sequences and one of each arm, where all gaps of an arm are 0,
    or with a position outside the top, which has no figure.

    candidate, own: rows with an opinion of every position; one a sequence.
    """
    ours, theirs = [row.gaps_nats for row in candidate], [row.gaps_nats for row in own]
    if any(gap is None for gaps in (*ours, *theirs) for gap in gaps):
        return None
    return of_figures([_figures(gaps) for gaps in ours], [_figures(gaps) for gaps in theirs])


Figures = tuple[float, float]
"""Of one sequence: mean and largest gap, nats."""


def of_figures(ours: Sequence[Figures], theirs: Sequence[Figures]) -> Noise | None:
    """The same from each sequence's figures."""
    bulk = ratio([mean for mean, _ in ours], [mean for mean, _ in theirs])
    tail = ratio([largest for _, largest in ours], [largest for _, largest in theirs])
    if bulk is None or tail is None:
        return None
    bulk = Interval(value=math.sqrt(bulk.value), low=math.sqrt(bulk.low), high=math.sqrt(bulk.high))
    return Noise(candidate_sequences=len(ours), own_sequences=len(theirs), bulk=bulk, tail=tail)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval | None:
    """Of the means, with its interval; None without three values, one of each arm among them, or with a mean of 0."""
    n, m = len(ours), len(theirs)
    if not n or not m or n + m < 3:
        return None
    means = statistics.fmean(ours), statistics.fmean(theirs)
    if min(means) <= 0:
        return None
    squares = sum((one / mean - 1) ** 2 for values, mean in zip((ours, theirs), means, strict=True) for one in values)
    df = n + m - 2
    half = t_quantile(0.5 + CONFIDENCE / 2, df) * math.sqrt(squares / df * (1 / n + 1 / m))
    middle, half = math.log(means[0] / means[1]), min(half, WIDEST)
    return Interval(value=math.exp(middle), low=math.exp(middle - half), high=math.exp(middle + half))


def _figures(gaps_nats: Sequence[float | None]) -> Figures:
    known = [max(gap, 0.0) for gap in gaps_nats if gap is not None]
    return (statistics.fmean(known), max(known)) if known else (0.0, 0.0)
