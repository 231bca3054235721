"""An arm's repetitions of one axis are too far apart to have a median.

What it does
    Voids one axis at one concurrency when (max − min) / median over an arm's repetitions exceeds the recipe's
    max_spread; three times that for tails (p90, p99, max), which rest on few requests.
Why
    25,232 ± 17,263 against 42,935 ± 240 tok/s is a cold start, not a difference. A median of such numbers picks one
    of two worlds.
Deciding numbers
    Spread against protocol.max_spread (5 % unless the recipe says otherwise) × 1, or × 3 for tails (TAIL_FACTOR:
    5 % and 15 % are the limits that repeated gates of equal binaries were found to keep).
What to do
    Look at the values in report.json: one odd first value is a warm-up too short; two groups are two modes (clocks,
    arrival order); noise everywhere is another load on the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gate.checks.evidence import Evidence
from gate.observe.rows import ARMS, Finding
from gate.stats.median import median

CODE = "spread"
TIMING_ONLY = True
CONSEQUENCE = True
HINT = "look at the repetitions in report.json: a cold first value, two modes, or another load on the host"

TAIL_FACTOR = 3.0


def spread(values: Sequence[float | None]) -> float | None:
    """(max − min) / median, a share; None for fewer than two values or a median that is not positive."""
    measured = [value for value in values if value is not None]
    middle = median(measured) if len(measured) > 1 else None
    if middle is None or middle <= 0:
        return None
    return (max(measured) - min(measured)) / middle


def check(evidence: Evidence) -> Iterator[Finding]:
    protocol = evidence.plan.recipe.protocol
    for concurrency in evidence.concurrencies:
        for axis in evidence.axes(concurrency):
            limit = protocol.max_spread * (TAIL_FACTOR if axis.tail else 1.0)
            for arm in ARMS:
                values = evidence.values(axis, concurrency, arm)
                found = spread(values)
                if found is not None and found > limit:
                    shown = ", ".join("–" if value is None else f"{value:.4g}" for value in values)
                    message = (
                        f"{arm}'s {axis.name} at c{concurrency} spreads {100 * found:.1f} % ({shown}); "
                        f"expected at most {100 * limit:.1f} %"
                    )
                    yield Finding(
                        code=CODE,
                        message=message,
                        hint=HINT,
                        arm=arm,
                        concurrency=concurrency,
                        axis=axis.name,
                        beyond=found / limit,
                    )
