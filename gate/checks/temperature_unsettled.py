"""The GPU had not reached its working temperature.

What it does
    Voids an arm at a concurrency when the mean temperatures of a GPU in its legs are more than 15 °C apart.
Why
    A hot GPU holds a lower clock: from 36 to 88 °C one pair of cards lost 5 % of its throughput, and most of it in the
    last 15 °C. The first legs after idle then compare a cold GPU with a hot one.
Deciding numbers
    (max − min) over the arm's legs of the mean temperature in the load window, at most 15 °C (MAX_RANGE_C: about 3 %
    on the steepest part of the curve in https://github.com/noonghunna/club-3090/issues/178; repetitions may differ by
    5 %). One arm may be hotter than the other: that is its own doing.
What to do
    Run something on the GPU for some minutes first, or make warm-ups longer (workload.warmup_per_stream).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from gate.checks.evidence import Evidence
from gate.checks.readings import Readings, devices, in_load, readings
from gate.observe.rows import ARMS, Arm, Finding

CODE = "temperature-unsettled"
TIMING_ONLY = True
CONSEQUENCE = True
HINT = "warm the GPU up for some minutes first, or make warm-ups longer (workload.warmup_per_stream)"

MAX_RANGE_C = 15.0


def means_c(evidence: Evidence, taken: Readings, concurrency: int, arm: Arm, device: str) -> list[float]:
    """One for each leg that has a reading, in the order they ran."""
    windows = [in_load(taken, leg, f"{device}.temperature_c") for leg in evidence.at(concurrency, arm)]
    return [statistics.fmean(sample.value for sample in window) for window in windows if window]


def check(evidence: Evidence) -> Iterator[Finding]:
    taken = readings(evidence)
    for concurrency in evidence.concurrencies:
        for arm in ARMS:
            for device in devices(taken):
                means = means_c(evidence, taken, concurrency, arm, device)
                found = max(means) - min(means) if means else None
                if found is not None and found > MAX_RANGE_C:
                    message = (
                        f"{device} was at {', '.join(f'{mean:.0f}' for mean in means)} °C in the {arm}'s legs at "
                        f"c{concurrency}, {found:.0f} apart; expected at most {MAX_RANGE_C:.0f}"
                    )
                    yield Finding(
                        code=CODE,
                        message=message,
                        hint=HINT,
                        arm=arm,
                        concurrency=concurrency,
                        beyond=found / MAX_RANGE_C,
                    )
