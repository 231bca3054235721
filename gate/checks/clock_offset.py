"""The two arms ran at different SM clocks.

What it does
    Voids a concurrency at which the arms' SM clocks differ by more than 1 %, in the median or in the mean of their busy
    samples.
Why
    A difference of 12.8 % in the clock has made one of 7.2 % in step time, and was nearly called an improvement.
    Medians alone are not enough: they have been equal while the means were not.
Deciding numbers
    |candidate / oracle − 1| of the median and of the mean SM clock over busy samples, each at most 1 % (MAX_OFFSET, as
    recorded by the harness that met both faults).
What to do
    Pin the clock (nvidia-smi -lgc). Where one arm draws so much more power that it cannot keep the clock, that is part
    of the result: say so, and compare at a pinned clock that both can keep.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from gate.checks.evidence import Evidence
from gate.checks.readings import busy_of_arm, devices, readings
from gate.observe.rows import ARMS, Finding

CODE = "clock-offset"
TIMING_ONLY = True
CONSEQUENCE = True
HINT = "pin the clock (nvidia-smi -lgc) at one that both arms can keep"

MAX_OFFSET = 0.01
STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {"median": statistics.median, "mean": statistics.fmean}


def offsets(candidate: Sequence[float], oracle: Sequence[float]) -> dict[str, float]:
    """Relative difference of each statistic, candidate over oracle; empty when an arm has no sample or stands still."""
    if not candidate or not oracle:
        return {}
    pairs = {name: (statistic(candidate), statistic(oracle)) for name, statistic in STATISTICS.items()}
    return {name: (ours - theirs) / theirs for name, (ours, theirs) in pairs.items() if theirs > 0}


def check(evidence: Evidence) -> Iterator[Finding]:
    taken = readings(evidence)
    for concurrency in evidence.concurrencies:
        for device in devices(taken):
            clocks = [busy_of_arm(evidence, taken, concurrency, arm, device, "sm_clock_mhz") for arm in ARMS]
            for name, offset in offsets(*clocks).items():
                if abs(offset) > MAX_OFFSET:
                    message = (
                        f"the {name} of {device}'s SM clock is {100 * offset:+.1f} % in the candidate's legs at "
                        f"c{concurrency}; expected at most {100 * MAX_OFFSET:.0f} % either way"
                    )
                    yield Finding(
                        code=CODE, message=message, hint=HINT, concurrency=concurrency, beyond=abs(offset) / MAX_OFFSET
                    )
