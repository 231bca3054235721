"""Somebody else had a process on the GPU.

What it does
    Voids a leg during which NVML listed a compute process on a GPU of the run that belongs to neither arm nor the gate.
    Where NVML does not list the server under load either (a container with process ids of its own), or where an arm is
    attached and its process unknown, nothing is said.
Why
    Workers that wake on a GPU, other people's notebooks and the last run's leftovers take bandwidth, clocks and memory
    from whichever arm happens to run.
Deciding numbers
    Such processes, seen twice a second; none is allowed.
What to do
    Stop them (nvidia-smi shows them), and measure again.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence
from gate.observe.rows import Finding

CODE = "foreign-gpu-process"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = "stop it (nvidia-smi shows who it is) and measure again"


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        if leg.row.gpu_foreign_processes:
            names = ", ".join(leg.row.gpu_foreign_processes)
            yield void_leg(CODE, leg, f"{names} on the GPU during the leg; expected the two arms alone", HINT)
