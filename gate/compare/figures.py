"""7 A judged grid -> what is compared of it. A cell that is VOID, or has but a bound, has no figures here either."""

from __future__ import annotations

from gate.compare.record import Figures
from gate.observe.rows import Verdict
from gate.report.model import ArmSummary, Cell, Report
from gate.stats.band import Band


def primary(report: Report) -> tuple[Figures, ...]:
    return tuple(figures(cell) for cell in report.cells if cell.primary)


def figures(cell: Cell) -> Figures:
    void = cell.verdict is Verdict.VOID or cell.bounded
    return Figures(
        axis=cell.axis,
        concurrency=cell.concurrency,
        unit=cell.unit,
        direction=cell.direction,
        candidate=() if void else cell.candidate_values,
        oracle=() if void else cell.oracle_values,
    )


def noise(cell: Cell) -> Band | None:
    """The host's noise as the grid itself was judged with it; None in a report that does not say."""
    if cell.prior_sd is None or cell.prior_df is None:
        return None
    return Band(cell.band, cell.prior_sd, cell.prior_df, cell.prior)


def named(arm: ArmSummary) -> str:
    return arm.name if arm.version is None else f"{arm.name} {arm.version}"
