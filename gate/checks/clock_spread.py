"""The SM clock moved while one arm was measured.

What it does
    Voids an arm at a concurrency when the SM clocks of its busy samples, over all its legs, are more than 5 % apart.
Why
    A GPU that ramps up for minutes has run from 1449 to 2190 MHz inside one series. Clocks carry over into step time at
    about three quarters.
Deciding numbers
    (max − min) / median over the busy samples in the load windows of the arm's legs, at most 5 % (MAX_SPREAD, as
    recorded by the harness that met this fault; it is also what repetitions may differ by).
What to do
    Pin the clock (nvidia-smi -lgc), or let the GPU warm up for longer before the run.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.evidence import Evidence
from gate.checks.readings import busy_of_arm, devices, readings
from gate.checks.spread import spread
from gate.observe.rows import ARMS, Finding

CODE = "clock-spread"
TIMING_ONLY = True
CONSEQUENCE = True
HINT = "pin the clock (nvidia-smi -lgc), or let the GPU warm up for longer before the run"

MAX_SPREAD = 0.05


def check(evidence: Evidence) -> Iterator[Finding]:
    taken = readings(evidence)
    for concurrency in evidence.concurrencies:
        for arm in ARMS:
            for device in devices(taken):
                clocks = busy_of_arm(evidence, taken, concurrency, arm, device, "sm_clock_mhz")
                found = spread(clocks)
                if found is not None and found > MAX_SPREAD:
                    message = (
                        f"{device}'s SM clock ran from {min(clocks):.0f} to {max(clocks):.0f} MHz in the {arm}'s legs "
                        f"at c{concurrency}, {100 * found:.1f} % apart; expected at most {100 * MAX_SPREAD:.0f} %"
                    )
                    yield Finding(
                        code=CODE,
                        message=message,
                        hint=HINT,
                        arm=arm,
                        concurrency=concurrency,
                        beyond=found / MAX_SPREAD,
                    )
