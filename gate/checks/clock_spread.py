"""The SM clock moved while one arm was measured, and its own load does not explain it.

What it does
    Voids an arm at a concurrency when the SM clocks of its busy samples, over all its legs, are more than 5 % apart,
    those left out that a power cap explains; or when the mean clocks of its legs, over all busy samples, are.
Why
    A GPU that ramps up for minutes has run from 1449 to 2190 MHz inside one series. Clocks carry over into step time at
    about three quarters. A card at its power limit is another matter: its clock follows what the arm draws, has run
    from 1455 to 1980 MHz between prefill and decode, and does so again in each repetition, with means of legs at most
    2.4 % apart. A ramp does not come back. It shows between the legs, whatever reason NVML gives meanwhile.
Deciding numbers
    (max − min) / median over the busy samples in the load windows of the arm's legs, and over the means of its legs,
    each at most 5 % (MAX_SPREAD, as recorded by the harness that met this fault; it is also what repetitions may differ
    by). When a cap explains a sample: verdict.md, "Clocks at the power limit".
What to do
    Pin the clock (nvidia-smi -lgc) at one that the GPU keeps under load, or let it warm up for longer before the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gate.checks.evidence import Evidence
from gate.checks.power_cap import Clocks, clocks
from gate.checks.readings import devices, readings
from gate.checks.spread import spread
from gate.observe.rows import ARMS, Arm, Finding

CODE = "clock-spread"
TIMING_ONLY = True
CONSEQUENCE = True
HINT = "pin the clock (nvidia-smi -lgc), or let the GPU warm up for longer before the run"

MAX_SPREAD = 0.05


def beyond(values: Sequence[float | None]) -> float | None:
    """Spread over its limit; None where it is kept, or where there are no two values."""
    found = spread(values)
    return found / MAX_SPREAD if found is not None and found > MAX_SPREAD else None


def _said(at: Clocks, arm: Arm) -> tuple[float, str] | None:
    """(spread over its limit, what ran how far)."""
    free, means = at.free(arm), [leg.mean for leg in at.of(arm) if leg.mean is not None]
    which = "SM clock outside its power limit" if at.explained else "SM clock"
    for values, words in ((free, which), (means, "mean SM clock by leg")):
        over = beyond(values)
        if over is not None:
            return over, f"{words} ran from {min(values):.0f} to {max(values):.0f} MHz"
    return None


def check(evidence: Evidence) -> Iterator[Finding]:
    taken = readings(evidence)
    for concurrency in evidence.concurrencies:
        for device in devices(taken):
            at = clocks(evidence, taken, concurrency, device)
            for arm in ARMS:
                said = _said(at, arm)
                if said is None:
                    continue
                over, words = said
                message = (
                    f"{device}'s {words} in the {arm}'s legs at c{concurrency}, "
                    f"{100 * over * MAX_SPREAD:.1f} % apart{at.why_all}; expected at most {100 * MAX_SPREAD:.0f} %"
                )
                yield Finding(code=CODE, message=message, hint=HINT, arm=arm, concurrency=concurrency, beyond=over)
