"""A server was started beside memory that an earlier one had not given back.

What it does
    Voids the first leg of a server that was started again (each block with residency = "alternate", or after a crash)
    when, before it, the host had more than 1 GiB less available, or the run's GPUs more than 1 GiB more in use, than
    before the first leg of the same arm. A server that stays up and grows is not judged here: its memory axes are.
Why
    A server that was killed has left 65 GiB of GPU memory behind, and pages of the host come back late. The server that
    comes next has a smaller cache, or swaps, and memory axes count what is not its own.
Deciding numbers
    MemAvailable and GPU memory in use before the warm-up, both servers that are up included, against the arm's first
    leg; at most 2^30 bytes apart (MAX_BYTES, as recorded by the harness that met this fault).
What to do
    Look for a process that outlived its server (nvidia-smi, ps), and for what else took memory since.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence
from gate.checks.server_restarted import restarts
from gate.observe.rows import ARMS, Finding, LegRow
from gate.units import gib

CODE = "memory-not-returned"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = "look for a process that outlived its server, and for what else took memory since"

MAX_BYTES = 2**30


def missing(row: LegRow, earlier: LegRow) -> dict[str, int]:
    """Bytes less than in the earlier leg, by where; negative where there are more, absent where unknown."""
    pairs = {
        "host": (earlier.host_available_before_bytes, row.host_available_before_bytes),
        "GPU": (row.gpu_used_before_bytes, earlier.gpu_used_before_bytes),
    }
    return {where: a - b for where, (a, b) in pairs.items() if a is not None and b is not None}


def check(evidence: Evidence) -> Iterator[Finding]:
    for arm in ARMS:
        legs = evidence.of_arm(arm)
        for leg, _, _ in restarts(evidence, arm):
            for where, lost in missing(leg.row, legs[0].row).items():
                if lost > MAX_BYTES:
                    found = f"{gib(lost)} of {where} memory were gone since {legs[0].name}"
                    message = f"{found}; expected at most {gib(MAX_BYTES)}"
                    yield void_leg(CODE, leg, message, HINT, beyond=lost / MAX_BYTES)
