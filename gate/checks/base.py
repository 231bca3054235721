"""What every check is: a module with a reason code, one predicate, and a docstring in a fixed form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from gate.checks.evidence import Evidence, Leg
from gate.observe.rows import Finding

SECTIONS = ("What it does", "Why", "Deciding numbers", "What to do")
"""The parts of a check's docstring, in order; docs/checks.md is generated from them."""


class Check(Protocol):
    """A module of this package."""

    CODE: str
    """The reason code: the file's name with dashes."""
    TIMING_ONLY: bool
    """True: the fault distorts times but not tokens, so the token comparison stays valid."""
    CONSEQUENCE: bool
    """True: other faults bring this one about. It is reported only where no finding above it covers the same cells."""

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        """A finding for each fault; nothing for a good run. What could not be observed is not a fault."""
        ...


def void_leg(
    code: str, leg: Leg, message: str, hint: str, axis: str | None = None, beyond: float | None = None
) -> Finding:
    """A finding that voids the leg's own cells: all of them, or those of one axis or family."""
    return Finding(
        code=code,
        message=message,
        hint=hint,
        leg_id=leg.name,
        arm=leg.row.arm,
        concurrency=leg.row.concurrency,
        axis=axis,
        beyond=beyond,
    )
