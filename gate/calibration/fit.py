"""6 Judged A/A gates -> band. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gate import verdict
from gate.calibration.record import BandCell, BandGate, BandKey, BandRecord
from gate.observe.rows import Verdict
from gate.report.model import Cell, Report
from gate.stats import band as bands
from gate.stats import modes
from gate.stats.median import median, ratio
from gate.stats.pairs import log_ratios

Key = tuple[str, int]


def fit(recipe: str, key: BandKey, reports: Sequence[Report]) -> BandRecord:
    """From the reports of A/A gates with equal keys, oldest first; void cells are left out and counted."""
    cells: dict[Key, list[Cell]] = {}
    for report in reports:
        for cell in report.cells:
            cells.setdefault((cell.axis, cell.concurrency), []).append(cell)
    decided = {name: _leave_one_out(found) for name, found in cells.items()}
    record = BandRecord(
        band_id="",
        recipe=recipe,
        key=key,
        gates=tuple(_gate(report, index, reports, decided) for index, report in enumerate(reports)),
        cells=tuple(_cell(found, decided[name]) for name, found in cells.items()),
    )
    return record.model_copy(update={"band_id": band_id(record)})


def band_id(record: BandRecord) -> str:
    return id_of(record.model_dump(mode="json"))


def id_of(document: Mapping[str, Any]) -> str:
    """Of a band file as it was parsed, whatever fields the version that wrote it knew."""
    rest = {name: value for name, value in document.items() if name != "band_id"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def usable(cell: Cell) -> bool:
    """Not void, with a ratio and not a bound, and measured in every repetition."""
    return cell.verdict is not Verdict.VOID and cell.ratio is not None and len(pairs(cell)) == len(cell.oracle_values)


def pairs(cell: Cell) -> tuple[float, ...]:
    return log_ratios(cell.candidate_values, cell.oracle_values, cell.direction)


def _leave_one_out(cells: Sequence[Cell]) -> tuple[verdict.Decision, ...]:
    """Each gate's cell judged with the prior of all the others; assumed where they know none."""
    made = []
    for index, cell in enumerate(cells):
        others = [pairs(other) for k, other in enumerate(cells) if k != index and usable(other)]
        prior = bands.prior(others)
        band = bands.assumed(cell.band) if prior is None else bands.calibrated(cell.band, prior)
        if not usable(cell):
            # Neither a void cell nor a bound rests on a prior: what was decided stays.
            kept = cell.verdict is Verdict.VOID or cell.bounded
            made.append(verdict.Decision(cell.verdict if kept else Verdict.INCONCLUSIVE, cell.reasons))
            continue
        made.append(
            verdict.cell(
                pairs(cell),
                ratio(median(cell.candidate_values), median(cell.oracle_values), cell.direction),
                planned_pairs=len(cell.oracle_values),
                floor=cell.floor,
                band=band,
                findings=(),
            )
        )
    return tuple(made)


def _gate(
    report: Report, index: int, reports: Sequence[Report], decided: dict[Key, tuple[verdict.Decision, ...]]
) -> BandGate:
    """The grid's verdict over its primary cells; tokens are another question."""
    primary = [cell for cell in report.cells if cell.primary]
    own = [decided[cell.axis, cell.concurrency][_place(reports, index, cell)] for cell in primary]
    floor = primary[0].floor if primary else 1.0
    judged = [
        cell.model_copy(update={"verdict": made.verdict})
        for cell, made in zip(primary, verdict.family(own, floor), strict=True)
    ]
    return BandGate(run_id=report.run_id, verdict=verdict.grid(judged, ()).value)


def _place(reports: Sequence[Report], index: int, cell: Cell) -> int:
    """Position of this report's cell among all reports that have one of its axis and concurrency."""
    name = (cell.axis, cell.concurrency)
    return sum(any((c.axis, c.concurrency) == name for c in report.cells) for report in reports[:index])


def _cell(cells: Sequence[Cell], decided: Sequence[verdict.Decision]) -> BandCell:
    kept = [cell for cell in cells if usable(cell)]
    history = [pairs(cell) for cell in kept]
    prior = bands.prior(history)
    counted = Counter(made.verdict.value for made in decided)
    legs = [math.log(value) for cell in kept for value in (*cell.candidate_values, *cell.oracle_values) if value]
    return BandCell(
        axis=cells[0].axis,
        concurrency=cells[0].concurrency,
        primary=any(cell.primary for cell in cells),
        gates=len(kept),
        void=len(cells) - len(kept),
        pairs=sum(map(len, history)),
        sd=None if prior is None else prior.sd,
        df=None if prior is None else prior.df,
        robust=None if prior is None else prior.robust,
        between_gates_p=None if prior is None else prior.between_p,
        between_gates_sd=None if prior is None else prior.between_sd,
        ratios=tuple(cell.ratio for cell in kept if cell.ratio is not None),
        verdicts={kind.value: counted[kind.value] for kind in Verdict},
        modes=modes.note(legs),
    )
