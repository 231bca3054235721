"""7 The second look: which pre-declared extra legs are due after the planned ones. Pure, from the records alone.

So a resumed run and `gate report` come to the answer that the run itself came to.
"""

from __future__ import annotations

from gate import checks
from gate.calibration.apply import noise
from gate.cells import cells, main_legs
from gate.checks.evidence import Evidence
from gate.observe.rows import Verdict
from gate.observe.rundata import RunData
from gate.plan import PlannedLeg

MENDED_BY_REPETITIONS = frozenset({"interval-straddles", "estimates-disagree", "multiplicity"})
"""Reasons of an INCONCLUSIVE cell that more legs may resolve; what was not measured is not among them."""


def due(run: RunData) -> tuple[PlannedLeg, ...]:
    """All extra legs at the concurrencies where a primary cell is undecided for want of repetitions, in order.

    None before every planned leg is on disk.
    """
    if not run.plan.extra_legs:
        return ()
    first = Evidence.of(main_legs(run))
    if first.missing:
        return ()
    undecided = {
        cell.concurrency
        for cell in cells(first, checks.findings(first), noise(first))
        if cell.primary
        and cell.verdict is Verdict.INCONCLUSIVE
        and not MENDED_BY_REPETITIONS.isdisjoint(reason.code for reason in cell.reasons)
    }
    return tuple(leg for leg in run.plan.extra_legs if leg.concurrency in undecided)
