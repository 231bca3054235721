"""A leg began with less memory than the same leg of an earlier repetition.

What it does
    Voids a leg before which the host had more than 1 GiB less available, or the run's GPUs more than 1 GiB more in use,
    than before the first leg of the same arm at the same concurrency.
Why
    A server that was killed has left 65 GiB of GPU memory behind; one that leaks, or another program, leaves less of
    the host each time. The arm that runs next has a smaller cache, or swaps, and memory axes count what is not its own.
Deciding numbers
    MemAvailable and GPU memory in use before the warm-up, against the first repetition that ran; at most 2^30 bytes
    apart (MAX_BYTES: what drivers and allocators return late was seen to stay below).
What to do
    Look for a process that outlived its server (nvidia-smi, ps), and for a server that grows from leg to leg.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence
from gate.observe.rows import ARMS, Finding, LegRow
from gate.units import gib

CODE = "memory-not-returned"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = "look for a process that outlived its server, and for a server that grows from leg to leg"

MAX_BYTES = 2**30


def missing(row: LegRow, earlier: LegRow) -> dict[str, int]:
    """Bytes less than in the earlier leg, by where; negative where there are more, absent where unknown."""
    pairs = {
        "host": (earlier.host_available_before_bytes, row.host_available_before_bytes),
        "GPU": (row.gpu_used_before_bytes, earlier.gpu_used_before_bytes),
    }
    return {where: a - b for where, (a, b) in pairs.items() if a is not None and b is not None}


def check(evidence: Evidence) -> Iterator[Finding]:
    for concurrency in evidence.concurrencies:
        for arm in ARMS:
            legs = evidence.at(concurrency, arm)
            for leg in legs[1:]:
                for where, lost in missing(leg.row, legs[0].row).items():
                    if lost > MAX_BYTES:
                        message = (
                            f"{gib(lost)} of {where} memory were gone since {legs[0].name}; "
                            f"expected at most {gib(MAX_BYTES)}"
                        )
                        yield void_leg(CODE, leg, message, HINT, beyond=lost / MAX_BYTES)
