"""Nothing says how far equal kernels move between two profiles.

What it does
    Marks every lever unproven when too few kernels have equal name and launches in two profiles: of both arms, or of
    the first arm before and after the other one.
Why
    Clocks and memory placement move every kernel by some share; a byte-identical Marlin moved by 9.65 % between two
    boots. A delta is only worth quoting above what equal kernels did. A closed attribution was once wrong in every
    line because the machine's state had moved instead.
Deciding numbers
    The equal kernels' share of either step's kernel time: at least a tenth. Two engines share a copy of 2 µs at most,
    which once made a "drift" of 20.5 %. The drift itself decides each lever (levers.py).
What to do
    Leave the control on: the first arm is profiled once more after the second.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.observe.rows import Finding
from gate.profile.checks.evidence import Evidence, finding

CODE = "no-drift-control"
REFUSES = False


def check(evidence: Evidence) -> Iterator[Finding]:
    if len(evidence.tables) == 2 and evidence.drift.share is None:
        yield finding(CODE, None, f"no drift control ({evidence.drift.source})", "profile without --no-control")
