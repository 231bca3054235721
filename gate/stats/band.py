"""Band: how far apart two equal arms come out on this box, and the noise prior that goes with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ASSUMED_PRIOR_DF = 4.0
"""Weight of an assumed prior, in degrees of freedom: less than the 10 that A/A history earns, more than the 2 of
three pairs. A guess that three measurements of 3 % noise can still overrule."""

ASSUMED_BAND_IN_SD = 2.0
"""An assumed band is read as two standard deviations of a paired log ratio: 95 of 100 pairs of equal arms inside."""


@dataclass(frozen=True, slots=True)
class Band:
    share: float
    """0.01 is 1 %: the slack below the floor."""
    prior_sd: float
    """Standard deviation of one paired log ratio of equal arms."""
    prior_df: float
    source: Literal["assumed", "calibrated"]
    """Only a calibrated band binds: it comes from A/A gates on the host."""


def assumed(share: float) -> Band:
    """The recipe's declared band, until the host is calibrated."""
    return Band(share, share / ASSUMED_BAND_IN_SD, ASSUMED_PRIOR_DF, "assumed")
