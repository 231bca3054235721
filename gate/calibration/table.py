"""8 A band as text, for `gate calibrate`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from gate.calibration.record import BandCell, BandRecord
from gate.report.table import axis_title
from gate.runs import from_here
from gate.stats.band import MIN_GATES, MIN_PAIRS
from gate.units import DASH, counted, percent

HEAD = ("conc", "axis", "gates", "void", "noise of a pair", "largest |ratio − 1|", "verdicts")


def text(record: BandRecord, path: Path) -> str:
    """Primary cells, one a line, then what the grids came to and what the history lacks."""
    rows = [HEAD, *(_row(cell) for cell in record.cells if cell.primary)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    gates = counted(len(record.gates), "A/A gate")
    return "\n".join(
        [
            f"band {record.band_id[:12]} of {record.key.host}: {gates} of {record.recipe}",
            "",
            *lines,
            "",
            f"grids      {_counts(Counter(gate.verdict for gate in record.gates))}; arms are equal: a FAIL is false",
            *(
                f"starts     c{c.concurrency} {c.axis}: gates differ by {percent(c.between_gates_sd, 2)} beyond their "
                'pairs; residency = "alternate" would show it in every gate'
                for c in record.cells
                if c.primary and c.between_gates_sd
            ),
            *(f"modes      c{c.concurrency} {c.axis}: {c.modes}" for c in record.cells if c.primary and c.modes),
            *(f"binds not  c{c.concurrency} {c.axis}: {why}" for c in record.cells if c.primary and (why := lacks(c))),
            f"band file  {from_here(path)}",
        ]
    )


def lacks(cell: BandCell) -> str | None:
    """Why a run that binds cannot rest on this cell."""
    if cell.sd is None:
        return "no noise is known: its cells were void, or all pairs equal"
    if cell.gates < MIN_GATES:
        more = f"gate calibrate --gates {MIN_GATES + cell.void} runs more"
        return f"{counted(cell.gates, 'gate')}, fewer than {MIN_GATES}; {more}"
    if cell.pairs < MIN_PAIRS:
        return f"{counted(cell.pairs, 'pair')}, fewer than {MIN_PAIRS}: gates of three repetitions have them"
    return None


def _row(cell: BandCell) -> tuple[str, ...]:
    worst = max((abs(ratio - 1) for ratio in cell.ratios), default=None)
    return (
        str(cell.concurrency),
        axis_title(cell.axis, "").strip(),
        str(cell.gates),
        str(cell.void),
        percent(cell.sd, 2) + ("" if cell.robust is not False else " (plain)"),
        percent(worst, 2),
        _counts(Counter(cell.verdicts)),
    )


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counted.items() if count) or DASH
