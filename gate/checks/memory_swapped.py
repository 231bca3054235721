"""The host swapped during a leg.

What it does
    Voids a leg during which more than 1 MiB went to or came from swap.
Why
    A server whose pages, or a client whose buffers, come from disk has latencies of the disk. Free memory does not show
    it: the pages are gone by then.
Deciding numbers
    Bytes swapped in and out from before the warm-up to after the leg, by anybody, at most 2^20 (MAX_BYTES: a service
    that wakes up reads a few pages; weights or caches that left memory are gigabytes).
What to do
    Free memory, set residency = "alternate", or switch swap off (swapoff -a).
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence
from gate.observe.rows import Finding

CODE = "memory-swapped"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = 'free memory, set residency = "alternate", or switch swap off'

MAX_BYTES = 2**20


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        swapped = leg.row.host_swapped_bytes
        if swapped is not None and swapped > MAX_BYTES:
            found = f"{swapped / 2**20:.1f} MiB went through swap during the leg"
            message = f"{found}; expected at most {MAX_BYTES / 2**20:.0f} MiB"
            yield void_leg(CODE, leg, message, HINT, beyond=swapped / MAX_BYTES)
