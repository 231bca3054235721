"""Which arm ran first in a repetition decided the ratio.

What it does
    Voids an axis at one concurrency whose ratio depends on the order within a repetition by more than the band, beyond
    what the repetitions scatter. Tails are left out: they rest on few requests. So are fewer than two repetitions of
    either order: one odd leg looks the same there, and is left to spread and to the two estimates of verdict.md.
Why
    The configuration measured first has come out three times slower with a small spread, each time: low variance proves
    nothing. ABBA cancels an order effect from the mean of the pairs; with an odd number of repetitions the ratio of the
    medians keeps all of it.
Deciding numbers
    Half the difference between the mean log ratio of the repetitions that the candidate began and that of those the
    oracle began, |e|. At most the larger of protocol.band and t · s̃ · √(1/n₁ + 1/n₂) / 2, with s̃ moderated by the
    band's prior as in verdict.md, and t at 99 %.
What to do
    Find what the first leg of a repetition meets that the second does not: a server just started, a clock that was
    low, a cache that the other arm filled. Pause equally before each leg, or make warm-ups longer.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from gate.checks.evidence import Evidence
from gate.metrics import Axis, axes_for
from gate.observe.rows import ARMS, Arm, Finding
from gate.stats import order
from gate.stats.band import Band, assumed
from gate.stats.distributions import t_quantile
from gate.stats.pairs import log_ratios

CODE = "order-effect"
TIMING_ONLY = True
CONSEQUENCE = True
HINT = "find what the first leg of a repetition meets that the second does not; make warm-ups longer"

MIN_EACH = 2
CONFIDENCE = 0.99
ROUNDING = 1e-9
"""Equal legs and a band of 0 leave differences in the last bits."""


def by_first(evidence: Evidence, concurrency: int, axis: Axis) -> dict[Arm, list[float]]:
    """Paired log ratios of the axis, by the arm that ran first in the repetition."""
    position = {leg.name: place for place, leg in enumerate(evidence.legs)}
    sides: dict[Arm, list[float]] = {"candidate": [], "oracle": []}
    for candidate, oracle in evidence.pairs(concurrency):
        repetition = candidate.row.repetition
        ours, theirs = (evidence.values(axis, concurrency, arm)[repetition] for arm in ARMS)
        began: Arm = min((candidate, oracle), key=lambda leg: position[leg.name]).row.arm
        sides[began] += log_ratios((ours,), (theirs,), axis.direction)
    return sides


def effect(began: Sequence[float], followed: Sequence[float]) -> float | None:
    """e, a log ratio: what running first adds to the candidate's. None with fewer than MIN_EACH of either order."""
    if min(len(began), len(followed)) < MIN_EACH:
        return None
    return order.effect(began, followed)


def noise(began: Sequence[float], followed: Sequence[float], band: Band) -> float:
    """What |e| may be by chance; both must have a repetition."""
    groups = (began, followed)
    df = band.prior_df + sum(len(group) - 1 for group in groups)
    squares = sum((value - statistics.fmean(group)) ** 2 for group in groups for value in group)
    pooled = (band.prior_df * band.prior_sd**2 + squares) / df
    return t_quantile(0.5 + CONFIDENCE / 2, df) * math.sqrt(pooled * sum(1 / len(g) for g in groups)) / 2


def check(evidence: Evidence) -> Iterator[Finding]:
    protocol = evidence.plan.recipe.protocol
    band = assumed(protocol.band)
    for concurrency in evidence.concurrencies:
        axes = axes_for(evidence.requests_per_leg(concurrency), protocol.primary)
        for axis in [axis for axis in axes if not axis.tail]:
            sides = by_first(evidence, concurrency, axis)
            found = effect(sides["candidate"], sides["oracle"])
            if found is None:
                continue
            limit = max(protocol.band, noise(sides["candidate"], sides["oracle"], band), ROUNDING)
            if abs(found) > limit:
                message = (
                    f"{axis.name} at c{concurrency}: running first moves the candidate by {100 * found:+.1f} %; "
                    f"expected at most {100 * limit:.1f} % either way"
                )
                yield Finding(
                    code=CODE,
                    message=message,
                    hint=HINT,
                    concurrency=concurrency,
                    axis=axis.name,
                    beyond=abs(found) / limit,
                )
