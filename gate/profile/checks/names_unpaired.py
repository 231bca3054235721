"""Kernel names that no rule puts into a family.

What it does
    Reports names that neither the other arm has nor any rule of families.py knows. Their lever is unproven; the others
    are not touched.
Why
    cuBLASLt picks another kernel from one process to the next without a change of code, so names alone do not pair two
    arms. A rule does, and is printed; where there is none, the time belongs to nothing.
Deciding numbers
    The names, and their share of the arm's kernel time. No threshold.
What to do
    Add a rule to gate/profile/families.py, first match wins, and a line to its test.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.observe.rows import Finding
from gate.profile.checks.evidence import Evidence, finding
from gate.profile.families import OTHER

CODE = "names-unpaired"
REFUSES = False


def check(evidence: Evidence) -> Iterator[Finding]:
    for arm, table in evidence.tables.items():
        unknown = [kernel for kernel in table.kernels if kernel.family == OTHER]
        if unknown:
            us = sum(kernel.us for kernel in unknown)
            yield finding(
                CODE,
                arm,
                f"{len(unknown)} of {arm}'s kernels ({us:.0f} µs a step, {100 * us / table.sum_us:.1f} %) are in no "
                f"family, first {unknown[0].name[:60]}",
                "add a rule to gate/profile/families.py",
            )
