"""6 Band: the contract's slack below the floor, and the noise prior of the host that goes with it.

The two are apart on purpose. The slack is declared in the recipe and never widened by a noisy host; the prior is the
host's, and a noisy one gets wide intervals, so INCONCLUSIVE, not a more lenient contract.

    s0 = 1.4826 · median |d − median d|        over all paired log ratios d of the A/A history
    d0 = min(4, 0.3675 · (pairs − 1))

1.4826 makes it the standard deviation of normal noise. 0.3675 is the efficiency of that estimate (Rousseeuw & Croux
1993): 24 pairs know the variance as well as 8.5 degrees of freedom of plain data. The cap of 4 is below that because
a median of deviations does not see the rare slow leg, which s² of the gate in hand does: with 8.5 a true loss of one
band passes in 3.8 % of simulated gates, with 4 in 1.9 %, at equal power (docs/verdict.md).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import stats

ASSUMED_PRIOR_DF = 4.0
"""Weight of an assumed prior: a guess that three measurements of 3 % noise can still overrule."""

ASSUMED_BAND_IN_SD = 2.0
"""An assumed band is read as two standard deviations of a paired log ratio: 95 of 100 pairs of equal arms inside."""

MOST_PRIOR_DF = 4.0
MAD_TO_SD = 1.4826
MAD_EFFICIENCY = 0.3675

MIN_GATES = 8
"""Fewest A/A gates of a history that binds; 24 pairs at three repetitions."""


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


@dataclass(frozen=True, slots=True)
class Band:
    share: float
    """0.01 is 1 %: the slack below the floor."""
    prior_sd: float
    """Standard deviation of one paired log ratio of equal arms."""
    prior_df: float
    source: Literal["assumed", "calibrated"]
    """Only a calibrated prior binds: it comes from A/A gates on the host."""


def assumed(share: float) -> Band:
    """The recipe's declared slack with a guessed prior, until the host is calibrated."""
    return Band(share, share / ASSUMED_BAND_IN_SD, ASSUMED_PRIOR_DF, "assumed")


def calibrated(share: float, prior: Prior) -> Band:
    return Band(share, prior.sd, prior.df, "calibrated")


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
    return Prior(sum(bool(gate) for gate in gates), len(pairs), sd, df, robust)


def between_gates_p(gates: Sequence[Sequence[float]]) -> float | None:
    """Kruskal-Wallis over gates: small means that gates differ by more than their own pairs do.

    The interval of one gate cannot see such a difference, so it is too narrow. By ranks, since one slow leg must not
    decide it. None for fewer than two gates, or when all pairs are equal.
    """
    kept = [gate for gate in gates if gate]
    if len(kept) < 2 or len(set(itertools.chain.from_iterable(kept))) < 2:
        return None
    return float(stats.kruskal(*kept).pvalue)
