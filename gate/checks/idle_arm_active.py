"""The arm that was not being measured was at work.

What it does
    Voids a leg during which the other arm read or made tokens, or used more than a quarter of a core.
Why
    A candidate that passes its requests on to the oracle answers as the oracle does, and a server that spins while it
    is idle slows the arm that is measured. foreign-load leaves both arms out; this looks at the one that should rest.
Deciding numbers
    Prompt and generation tokens that the other arm counted during the leg; 0 are allowed. Its CPU seconds / leg
    seconds, at most 0.25 cores (MAX_CORES, as for foreign load). An arm that does not count is not judged by tokens.
What to do
    Look for a proxy between the arms or a second client; for a server that spins, residency = "alternate".
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, Leg
from gate.observe.rows import Finding
from gate.units import counted

CODE = "idle-arm-active"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = 'look for a proxy between the arms or a second client; for a server that spins, residency = "alternate"'

MAX_CORES = 0.25


def idle_cores(leg: Leg) -> float | None:
    """Cores that the other arm used; None where it was not measured."""
    if leg.row.other_arm_cpu_s is None or leg.duration_s <= 0:
        return None
    return leg.row.other_arm_cpu_s / leg.duration_s


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        tokens, cores = leg.row.other_arm_tokens, idle_cores(leg)
        if tokens:
            yield void_leg(
                CODE, leg, f"the other arm counted {counted(tokens, 'token')} during the leg; expected 0", HINT
            )
        if cores is not None and cores > MAX_CORES:
            message = f"the other arm used {cores:.2f} cores during the leg; expected at most {MAX_CORES}"
            yield void_leg(CODE, leg, message, HINT, beyond=cores / MAX_CORES)
