"""The kernel killed a process for memory during a leg.

What it does
    Voids a leg during which the kernel's count of OOM kills rose.
Why
    Before it kills, the kernel empties every cache and stalls everybody who asks for memory. And what it killed may
    have been a worker of the server, which a supervisor brought back.
Deciding numbers
    OOM kills from before the warm-up to after the leg; 0 are allowed.
What to do
    Read dmesg for what was killed; free memory, or set residency = "alternate".
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence
from gate.observe.rows import Finding

CODE = "oom-kill"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = 'read dmesg for what was killed; free memory, or set residency = "alternate"'


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        if leg.row.host_oom_kills:
            yield void_leg(CODE, leg, f"the kernel killed {leg.row.host_oom_kills} processes; expected 0", HINT)
