"""The device lock was not held during a leg.

What it does
    Voids a leg for which the lock holder could not prove that the lock was its own from start to end.
Why
    Two gates on one GPU have both believed that they held it, through two paths to the same mutex, and a lock
    dropped between legs lets a build start in the gap.
Deciding numbers
    lock_held of the leg; must be true.
What to do
    Look for a second gate, and for anything that deletes the lock file; then `gate resume`.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence
from gate.observe.rows import Finding, LegRow

CODE = "lock-lost"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = "look for a second gate and for what removed the lock file"


def lost(row: LegRow) -> bool:
    return not row.lock_held


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        if lost(leg.row):
            yield void_leg(CODE, leg, "the lock was not held throughout the leg; expected it to be", HINT)
