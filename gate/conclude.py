"""5 to 8 Raw records on disk -> judged report on disk. What `gate run` ends with and `gate report` does again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rich.console import Console

from gate import shell
from gate.errors import StorageError
from gate.judge import judge
from gate.observe import seals
from gate.observe.store import Store, read_run
from gate.report import html, jsonfile, markdown, plots, terminal
from gate.report.model import Cell, Report
from gate.runs import from_here, no_report, require_records

PLAIN_WIDTH = 120
"""Columns where standard output is a file or a pipe."""


def conclude(folder: Path, finished_at: str | None = None) -> Report:
    """Judge, write every report file, then the terminal marker when the run is finished; print the table.

    finished_at: None for a run that was cut short, or that already has its marker.
    Raises StorageError where nothing was measured, or cannot be read.
    """
    run, place = read_run(folder), Store(folder)
    require_records(folder)
    if finished_at is not None:
        run = dataclasses.replace(run, finished_at=finished_at)
    report = judge(run)
    place.merge(run)
    place.write_rows("cells", Cell, report.cells)
    place.write_text("report.json", jsonfile.render(report))
    place.write_text("report.md", markdown.render(report))
    drawn = plots.render(report)
    place.write_text("report.html", html.render(report, drawn))
    for name in plots.CAPTIONS:
        if name in drawn:
            place.write_text(name, drawn[name])
        else:
            (folder / name).unlink(missing_ok=True)  # an earlier report of this run had something to show
    if seals.is_sealed(folder):
        place.seal_report()
    if finished_at is not None:
        place.complete(finished_at, report.verdict.value, report.exit_code)
    print_table(report, folder)
    return report


def print_table(report: Report, folder: Path, every: bool = False) -> None:
    """To standard output; colours where it is a terminal."""
    console = Console()
    width = console.width if console.is_terminal else PLAIN_WIDTH
    text = terminal.render(
        report, all_cells=every, colour=console.is_terminal, width=width, where=from_here(folder / "report.html")
    )
    shell.table(text)


def stored(folder: Path) -> Report:
    """The report as it was written.

    Raises:
        StorageError: the run has none yet, one of another version, or one that is not as it was written.
    """
    path = folder / "report.json"
    try:
        seals.check_shown(folder)
        report = jsonfile.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise no_report(folder) from error
    except (OSError, ValueError) as error:  # pydantic's ValidationError is a ValueError
        reason = str(error).splitlines()[0]
        raise StorageError(
            f"{path} cannot be read: {reason}", hint=f"gate report {folder.name} writes it anew"
        ) from error
    if report.finished_at is not None and not seals.is_complete(folder):
        raise seals.lost_marker(folder)
    return report
