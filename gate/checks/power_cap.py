"""5 Which clocks a power cap explains: the clocks of one concurrency's legs, with and without samples under a cap.

Where a card would exceed its power limit it lowers its clock, and NVML names the software power cap as the reason. The
clock is then what the arm under load draws, which is a property of the arm, and no fault of the machine. That is
believed under three conditions; where one fails, the cap explains nothing and all samples count.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gate.checks.evidence import Evidence, Leg
from gate.checks.readings import Readings, busy_samples
from gate.observe.gpu import at_power_limit
from gate.observe.rows import ARMS, Arm

MIN_FREE = 3
"""Samples without a cap that each leg needs where the power limit is not known: the fewest whose median survives a
reading taken while the clock changed. What is set from outside, a pin or the state after a boot, holds for a whole leg,
so that few samples of each leg show it; many samples of one leg say nothing about another."""
MIN_LEGS = 2
"""Of an arm: a clock that follows the load comes back with the next repetition, one that ramps does not."""


@dataclass(frozen=True, slots=True)
class LegClocks:
    """SM clocks of one leg on one GPU while it was at work, MHz."""

    arm: Arm
    repetition: int
    busy: tuple[float, ...]
    free: tuple[float, ...]
    """Those that no cap explains; all of `busy` where caps explain nothing."""

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.busy) if self.busy else None


@dataclass(frozen=True, slots=True)
class Clocks:
    """One GPU's clocks at one concurrency."""

    legs: tuple[LegClocks, ...]
    capped: dict[Arm, int]
    """Busy samples under a cap, whether or not it explains them."""
    limits_w: tuple[float, ...]
    """Every power limit that was read, ascending; empty: not read."""
    doubt: str | None
    """Why caps explain nothing here; None where they explain, or where there is none."""

    def of(self, arm: Arm) -> tuple[LegClocks, ...]:
        return tuple(leg for leg in self.legs if leg.arm == arm)

    def busy(self, arm: Arm) -> tuple[float, ...]:
        return tuple(mhz for leg in self.of(arm) for mhz in leg.busy)

    def free(self, arm: Arm) -> tuple[float, ...]:
        return tuple(mhz for leg in self.of(arm) for mhz in leg.free)

    @property
    def explained(self) -> bool:
        """Whether samples were left out."""
        return self.doubt is None and any(self.capped.values())

    @property
    def why_all(self) -> str:
        """For a message: why samples under a cap count too; empty where there is none or where they do not."""
        return f" (power caps explain nothing: {self.doubt})" if self.doubt else ""


def clocks(evidence: Evidence, taken: Readings, concurrency: int, device: str) -> Clocks:
    """SM clocks of both arms' legs at one concurrency on one GPU."""
    legs = evidence.at(concurrency)
    busy: list[tuple[float, ...]] = []
    free: list[tuple[float, ...]] = []
    for leg in legs:
        samples, capped = busy_samples(taken, leg, device, "sm_clock_mhz"), under_cap(taken, leg, device)
        busy.append(tuple(sample.value for sample in samples))
        free.append(tuple(sample.value for sample in samples if sample.t_ns not in capped))
    arms = [leg.row.arm for leg in legs]
    counts = dict.fromkeys(ARMS, 0)
    for arm, of_leg, outside in zip(arms, busy, free, strict=True):
        counts[arm] += len(of_leg) - len(outside)
    limits = [_limits_w(taken, leg, device) for leg in legs]
    doubt = _doubt(arms, limits, free) if any(counts.values()) else None
    made = [
        LegClocks(leg.row.arm, leg.row.repetition, of_leg, of_leg if doubt else outside)
        for leg, of_leg, outside in zip(legs, busy, free, strict=True)
    ]
    return Clocks(tuple(made), counts, tuple(sorted(_all(limits))), doubt)


def under_cap(taken: Readings, leg: Leg, device: str) -> frozenset[int]:
    """Times (ns) of the leg's samples under a cap: NVML named it then, or in the sample before or after.

    Clock and reason are two calls, and the reason is told later than the clock falls. A sample without a reason is
    under none.
    """
    masks = taken.get(leg.name, {}).get(f"{device}.throttle_mask", ())
    at = [at_power_limit(int(sample.value)) for sample in masks]
    return frozenset(sample.t_ns for k, sample in enumerate(masks) if any(at[max(0, k - 1) : k + 2]))


def _limits_w(taken: Readings, leg: Leg, device: str) -> frozenset[float]:
    return frozenset(sample.value for sample in taken.get(leg.name, {}).get(f"{device}.power_limit_w", ()))


def _doubt(arms: Sequence[Arm], limits: Sequence[frozenset[float]], free: Sequence[Sequence[float]]) -> str | None:
    """The first condition that fails, in words. All three are by leg, in the same order."""
    limits_w = _all(limits)
    if len(limits_w) > 1:
        return f"the power limit moved from {min(limits_w):g} to {max(limits_w):g} W"
    few = [arm for arm in ARMS if arms.count(arm) < MIN_LEGS]
    if few:
        return f"the {few[0]} has no second leg to hold its clock against"
    known = all(limits)
    least = min(len(clocks) for clocks in free)
    if not known and least < MIN_FREE:
        return f"the power limit is not known, and a leg has {least} samples without a cap, fewer than {MIN_FREE}"
    return None


def _all(limits: Sequence[frozenset[float]]) -> frozenset[float]:
    return frozenset().union(*limits)
