"""8 A sweep's table, as text and as Markdown: mean ± standard deviation of each arm, the ratio of the means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gate import shell
from gate.report import table
from gate.runs import from_here
from gate.sweep.plots import CAPTIONS
from gate.sweep.record import SweepReport, SweepSeries
from gate.units import DASH, counted, number, ratio

ABOUT = (
    "One stream over HTTP, tok/s, mean ± standard deviation. pp: prompt tokens over the time to the first token. "
    "tg: steps after the first token, at a depth. No verdict: gate run gives those."
)

DOUBTED = "†"
"""After the name of a point whose figures are not to be believed; a note says why."""


def headline(made: SweepReport) -> str:
    state = "" if made.complete else ", incomplete"
    return f"sweep of {made.recipe} on {made.host}, {counted(made.repetitions, 'repetition')}{state}"


def head(made: SweepReport) -> tuple[str, ...]:
    return ("", *made.arms, *(("ratio",) if len(made.arms) > 1 else ()))


def rows(made: SweepReport) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            cell.name + (f" {DOUBTED}" if cell.doubts else ""),
            *map(_mean, cell.series),
            *((ratio(cell.ratio),) if len(made.arms) > 1 else ()),
        )
        for cell in made.cells
    )


def notes(made: SweepReport) -> tuple[str, ...]:
    doubted: dict[str, list[str]] = {}
    for cell in made.cells:
        for why in cell.doubts:
            doubted.setdefault(why, []).append(cell.name)
    said = [f"{DOUBTED} not to be believed, {', '.join(names)}: {why}" for why, names in doubted.items()]
    said += [] if made.ended is None else [f"ended early: {made.ended}"]
    said += [f"{finding.message}; {finding.hint}" for finding in made.findings]
    said += [f"{cell.name}, {one.arm}: {why}" for cell in made.cells for one in cell.series for why in one.faults]
    return tuple(dict.fromkeys(map(table.plain, said)))


def plain(made: SweepReport) -> str:
    lines = (head(made), *rows(made))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    shown = [
        "  ".join(c.rjust(w) if k else c.ljust(w) for k, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]
    return "\n".join([headline(made), "", *shown, "", ABOUT, *notes(made)]) + "\n"


def markdown(made: SweepReport, drawn: Sequence[str]) -> str:
    names = head(made)
    lines = (names, ("---", *("---:",) * (len(names) - 1)), *rows(made))
    parts = [f"# {headline(made)}", "\n".join("| " + " | ".join(line) + " |" for line in lines), ABOUT]
    parts += [f"![{CAPTIONS[name]}]({name})" for name in drawn]
    if told := notes(made):
        parts.append("\n".join(f"* {note}" for note in told))
    return "\n\n".join(parts) + "\n"


def show(made: SweepReport, folder: Path) -> None:
    shell.table(plain(made) + f"\nreport  {from_here(folder / 'sweep.md')}\n")


def _mean(series: SweepSeries) -> str:
    if series.mean is None:
        return DASH
    return number(series.mean) + (f" ± {number(series.sd, 3)}" if series.sd is not None else "")
