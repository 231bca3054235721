"""Something else was working on the host.

What it does
    Voids a leg during which processes of neither arm nor the gate used more than a quarter of a core on average.
Why
    Builds, tests and desktop workers beside a benchmark have produced most of the wrong numbers on record; they slow
    whichever arm happens to run.
Deciding numbers
    Foreign CPU seconds / leg seconds, at most 0.25 cores (MAX_CORES: idle system services stay below a tenth).
What to do
    Stop the other work (`top` names it) and `gate resume`, or measure again.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, Leg
from gate.observe.rows import Finding

CODE = "foreign-load"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = "stop the other work on this host (top names it) and measure again"

MAX_CORES = 0.25


def foreign_cores(leg: Leg) -> float | None:
    if leg.row.host_load_foreign_cpu_s is None or leg.duration_s <= 0:
        return None
    return leg.row.host_load_foreign_cpu_s / leg.duration_s


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        found = foreign_cores(leg)
        if found is not None and found > MAX_CORES:
            message = f"other processes used {found:.2f} cores during the leg; expected at most {MAX_CORES}"
            yield void_leg(CODE, leg, message, HINT, beyond=found / MAX_CORES)
