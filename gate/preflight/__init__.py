"""3 What must hold before the first leg: one file per precondition, cheapest and most telling first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gate.observe.rows import Finding
from gate.plan import Plan
from gate.preflight import (
    attached,
    checkpoint,
    clocks,
    disk,
    gpu_idle,
    host_idle,
    memory,
    oracle,
    ports,
    program,
    results,
)

Check = Callable[[Plan, Path], tuple[Finding, ...]]

CHECKS: tuple[Check, ...] = (
    results.check,
    disk.check,
    attached.check,
    program.check,
    ports.check,
    checkpoint.check,
    oracle.check,
    memory.check,
    gpu_idle.check,
    clocks.check,
    host_idle.check,
)


def preflight(plan: Plan, out: Path) -> tuple[Finding, ...]:
    """Run every check under the held lock; what is doubtful but does not stop the run comes back as findings.

    out: the results folder. Raises PreconditionError (or a subclass) or StorageError at the first check that fails.
    """
    return tuple(finding for check in CHECKS for finding in check(plan, out))
