"""The machine slept during a leg.

What it does
    Voids a leg in which CLOCK_BOOTTIME, which counts sleep, gained on CLOCK_MONOTONIC, which does not.
Why
    All stamps are monotonic: a leg that slept for an hour looks as if it had not, while connections timed out, clocks
    fell and the device cooled.
Deciding numbers
    Milliseconds slept from before the warm-up to after the leg, at most 10 (MAX_MS: the two clocks are read
    microseconds apart, and no machine sleeps for less than a second).
What to do
    Keep the machine awake (systemd-inhibit, or the host of a virtual machine), and measure again.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence
from gate.observe.rows import Finding

CODE = "machine-suspended"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = "keep the machine awake (systemd-inhibit gate run …) and measure again"

MAX_MS = 10.0


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        slept = leg.row.suspended_ms
        if slept is not None and slept > MAX_MS:
            yield void_leg(CODE, leg, f"the machine slept for {slept:.0f} ms; expected at most {MAX_MS:.0f}", HINT)
