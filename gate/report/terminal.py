"""Report -> the table at the end of a run. Coloured on a terminal, plain text everywhere else."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gate.compare import show
from gate.observe.rows import Verdict
from gate.report import residency, table, tokens
from gate.report.model import Cell, Report

STYLES = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.VOID: "magenta",
}

LABEL_WIDTH = 18
"""Wide enough for most reason codes, so that the lines below the table align."""


def render(
    report: Report, *, all_cells: bool = False, colour: bool = False, width: int = 120, where: str | None = None
) -> str:
    """The closing table as text.

    `where` is the folder of the full report. Without `colour` the text has no escape codes. The width is a wish: a
    table that needs more lines takes them.
    """
    out = io.StringIO()
    console = Console(
        file=out,
        force_terminal=colour,
        no_color=not colour,
        color_system="standard" if colour else None,
        width=width,
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
    )
    console.print(Group(*_parts(report, all_cells, where)))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _parts(report: Report, all_cells: bool, where: str | None) -> list[RenderableType]:
    title = Text(table.plain(f"{report.recipe} on {report.host}:") + " ")
    title.append(table.headline(report), STYLES[report.verdict])
    parts: list[RenderableType] = [
        title,
        Text(
            f"candidate {_arm(report.candidate.name, report.candidate.version)}"
            f" against oracle {_arm(report.oracle.name, report.oracle.version)}; ratio ≥ 1: candidate at least as good"
        ),
        "",
        _all(report) if all_cells else _primary(report),
        *map(Text, table.footnotes(report.cells if all_cells else [c for c in report.cells if c.primary])),
        "",
        _tokens(report),
        *(_line("oracle", text) for text in (tokens.own_text(report.tokens),) if text is not None),
        *(_line("", note) for note in table.footnotes((), report.tokens)),
        _line("cells", table.counts_text(report)),
        _line("noise", table.noise_text(report)),
        _line("client", table.client_text(report)),
    ]
    parts += [_line(label, told) for label, told in _servers(report) if told is not None]
    parts += [_line("note", note) for note in report.notes]
    parts += _regression(report)
    parts += [_line("indicative", reason) for reason in report.not_binding_because]
    parts += [_line(code, said) for code, said in table.briefly(table.reasons(report))]
    if where is not None:
        parts.append(_line("report", where))
    return parts


def _servers(report: Report) -> tuple[tuple[str, str | None], ...]:
    return (
        ("KV cache", table.capacity_text(report)),
        ("weights", residency.weights_text(report.candidate, report.oracle)),
        ("start-up", table.start_text(report)),
    )


def _regression(report: Report) -> list[Table]:
    found = report.regression
    if found is None:
        return []
    loud = Text(show.WORDS[found.verdict], STYLES[Verdict.FAIL]) if found.verdict == "loss" else None
    return [_line("regression", told, None if k else loud) for k, told in enumerate(show.lines(found))]


def _arm(name: str, version: str | None) -> str:
    return table.plain(name if version is None else f"{name} {version}")


def _tokens(report: Report) -> Table:
    verdict = Text(table.token_verdict_text(report.tokens), STYLES[table.token_verdict(report.tokens)])
    return _line("tokens", table.token_text(report.tokens), verdict)


def _line(label: str, text: str, verdict: Text | None = None) -> Table:
    """A label and its text, wrapped under itself."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(min_width=LABEL_WIDTH, no_wrap=True)
    grid.add_column(overflow="fold")
    body = Text(table.plain(text))
    if verdict is not None:
        body.append("  ").append_text(verdict)
    grid.add_row(Text(table.plain(label), "dim"), body)
    return grid


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)


def _verdict(cell: Cell | None) -> Text:
    if cell is None:
        return Text("")
    text = Text(table.ratio_text(cell) + " ")
    return text.append(cell.verdict.value, STYLES[cell.verdict])


def _primary(report: Report) -> Table:
    """Concurrency × primary axes: ratio (interval) and verdict."""
    shown = _table()
    axes = table.axes(report, primary_only=True)
    shown.add_column("conc", justify="right")
    for axis, unit in axes:
        shown.add_column(table.axis_title(axis, unit).rsplit(" ", 1)[0])
    for concurrency in report.concurrencies:
        shown.add_row(str(concurrency), *(_verdict(table.cell_of(report, axis, concurrency)) for axis, _ in axes))
    return shown


def _all(report: Report) -> Table:
    """One row per cell, with both arms' medians."""
    shown = _table()
    for name, side in (("conc", "right"), ("axis", "left"), ("candidate / oracle", "right"), ("ratio", "left")):
        shown.add_column(name, justify="right" if side == "right" else "left")
    for cell in report.cells:
        title = table.axis_title(cell.axis, cell.unit) + (" *" if cell.primary else "")
        shown.add_row(str(cell.concurrency), title, table.medians_text(cell), _verdict(cell))
    return shown
