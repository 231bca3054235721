"""The wall clock was set during a leg.

What it does
    Voids a leg in which the wall clock moved against CLOCK_BOOTTIME by more than a disciplined clock may.
Why
    Legs are put in order by their wall-clock start, and logs are read by it. A virtual machine that was paused or moved
    shows in the same way: its host sets the clock right afterwards.
Deciding numbers
    |wall clock − boot clock| gained from before the warm-up to after the leg, at most 128 ms (STEP_MS: beyond it NTP
    steps the clock, RFC 5905) plus 0.5 ms for each second of the leg (SLEW_MS_PER_S: the most it slews).
What to do
    Let the clock settle before a run (chronyc waitsync), and keep a virtual machine from being paused or moved.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence
from gate.observe.rows import Finding

CODE = "clock-stepped"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = "let the clock settle before a run (chronyc waitsync), and keep a virtual machine from being paused or moved"

STEP_MS = 128.0
SLEW_MS_PER_S = 0.5


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        stepped, allowed = leg.row.wall_step_ms, STEP_MS + SLEW_MS_PER_S * leg.duration_s
        if stepped is not None and abs(stepped) > allowed:
            message = f"the wall clock was set by {stepped:.0f} ms; expected at most {allowed:.0f}"
            yield void_leg(CODE, leg, message, HINT, beyond=abs(stepped) / allowed)
