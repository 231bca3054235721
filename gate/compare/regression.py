"""7 The candidate's absolute figures against the host's last accepted grid. Pure; changes no verdict and no exit code.

Ratios alone once hid a loss of 14 %: the candidate had become slower between two grids, and was still ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

from gate.compare.decide import moved, overall
from gate.compare.figures import figures, noise
from gate.compare.record import Baseline, Regression
from gate.report.model import Cell


def regression(baseline: Baseline | None, cells: Sequence[Cell], share: float) -> Regression | None:
    """None where the host had no accepted grid of this recipe when the run began."""
    if baseline is None:
        return None
    then = {(one.axis, one.concurrency): one for one in baseline.cells}
    now = [cell for cell in cells if cell.primary and (cell.axis, cell.concurrency) in then]
    pairs = [(then[cell.axis, cell.concurrency], figures(cell), noise(cell)) for cell in now]
    made = moved(pairs, share, same_machine=True)
    return Regression(
        **baseline.model_dump(include={"run_id", "started_at", "binding", "candidate", "oracle", "differs"}),
        cells=made,
        verdict=overall(made),
    )
