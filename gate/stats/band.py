"""6 Band: the contract's slack below the floor, and the noise prior of the host that goes with it.

The two are apart on purpose. The slack is declared in the recipe and never widened by a noisy host; the prior is the
host's, and a noisy one gets wide intervals, so INCONCLUSIVE, not a more lenient contract.

    s0 = 1.4826 · median |d − median d|        over all paired log ratios d of the A/A history
    d0 = min(4, 0.3675 · (pairs − 1))
    τ                                          how much whole gates differ beyond their pairs, where an F test says so

1.4826 makes it the standard deviation of normal noise. 0.3675 is the efficiency of that estimate (Rousseeuw & Croux
1993): 24 pairs know the variance as well as 8.5 degrees of freedom of plain data. The cap of 4 is below that because
a median of deviations does not see the rare slow leg, which s² of the gate in hand does: with 8.5 a true loss of one
band passes in 3.8 % of simulated gates, with 4 in 1.9 %, at equal power (docs/verdict.md).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gate.stats.distributions import f_tail

ASSUMED_PRIOR_DF = 4.0
"""Weight of an assumed prior: a guess that three measurements of 3 % noise can still overrule."""

ASSUMED_BAND_IN_SD = 2.0
"""An assumed band is read as two standard deviations of a paired log ratio: 95 of 100 pairs of equal arms inside."""

MOST_PRIOR_DF = 4.0
MAD_TO_SD = 1.4826
MAD_EFFICIENCY = 0.3675

BETWEEN_GATES_P = 0.01
"""Below it a difference between gates is believed. At 5 % the false alarms would cost 1 of 100 true decisions more."""

MIN_GATES = 8
"""Fewest A/A gates of a history that binds."""

MIN_PAIRS = 24
"""And fewest pairs: what 8 gates of three repetitions have, for which the error rates were simulated."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What equal arms did on this host, for one axis at one concurrency."""

    gates: int
    pairs: int
    sd: float
    """Of one paired log ratio."""
    df: float
    robust: bool
    """False: more than half of the pairs were equal to the last bit, and the plain standard deviation stands in."""
    between_p: float | None
    between_sd: float
    """τ; 0 unless between_p says that it is there."""


@dataclass(frozen=True, slots=True)
class Band:
    share: float
    """0.01 is 1 %: the slack below the floor."""
    prior_sd: float
    """Standard deviation of one paired log ratio of equal arms."""
    prior_df: float
    source: Literal["assumed", "calibrated"]
    """Only a calibrated prior binds: it comes from A/A gates on the host."""
    between_sd: float = 0.0
    """How much a gate as a whole is off, beside its pairs: what a start of the servers changes."""


def assumed(share: float) -> Band:
    """The recipe's declared slack with a guessed prior, until the host is calibrated."""
    return Band(share, share / ASSUMED_BAND_IN_SD, ASSUMED_PRIOR_DF, "assumed")


def calibrated(share: float, prior: Prior) -> Band:
    return Band(share, prior.sd, prior.df, "calibrated", prior.between_sd)


def prior(gates: Sequence[Sequence[float]]) -> Prior | None:
    """From the paired log ratios of each A/A gate. None when they know no variance: one pair, or all of them equal.

    Deviations are taken from the median of all pairs, not of each gate: what differs from one start of a server to
    the next is noise of a gate too.
    """
    pairs = list(itertools.chain.from_iterable(gates))
    if len(pairs) < 2:
        return None
    middle = statistics.median(pairs)
    sd = MAD_TO_SD * statistics.median(abs(pair - middle) for pair in pairs)
    robust = sd > 0
    if not robust:
        sd = statistics.stdev(pairs)
    if sd <= 0:
        return None
    df = min(MOST_PRIOR_DF, MAD_EFFICIENCY * (len(pairs) - 1))
    return Prior(sum(bool(gate) for gate in gates), len(pairs), sd, df, robust, *between(gates))


def between(gates: Sequence[Sequence[float]]) -> tuple[float | None, float]:
    """(p, τ): whether gates differ by more than their own pairs do, and by how much when they do, else 0.

        F = MSB / MSW over gates        τ² = (MSB − MSW) / n        n pairs a gate, the usual mean of unequal numbers

    p is None where it cannot be told: fewer than two gates, a pair each, or equal pairs.
    """
    kept = [gate for gate in gates if gate]
    total, k = sum(map(len, kept)), len(kept)
    if k < 2 or total <= k:
        return None, 0.0
    means = [statistics.fmean(gate) for gate in kept]
    grand = sum(mean * len(gate) for mean, gate in zip(means, kept, strict=True)) / total
    above = sum(len(gate) * (mean - grand) ** 2 for mean, gate in zip(means, kept, strict=True)) / (k - 1)
    within = sum((pair - mean) ** 2 for mean, gate in zip(means, kept, strict=True) for pair in gate) / (total - k)
    if within <= 0:
        return None, 0.0
    p = f_tail(above / within, k - 1, total - k)
    pairs = (total - sum(len(gate) ** 2 for gate in kept) / total) / (k - 1)
    return p, math.sqrt(max(0.0, above - within) / pairs) if p < BETWEEN_GATES_P else 0.0
