"""8 A profile on the terminal: each arm's families, then the levers that add up to the delta, then what is doubtful."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gate.profile import summary
from gate.profile.rows import Attribution, ProfileReport, StepTable
from gate.report.table import plain

STYLES = {
    "launch counts": "green",
    "same kernels": "green",
    "seen idle": "green",
    "by family": "yellow",
    "below drift": "dim",
    "unproven": "bold red",
}


def render(report: ProfileReport, *, colour: bool = False, width: int = 120, where: str | None = None) -> str:
    """Text without escape codes unless `colour`. where: the page with every kernel."""
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=colour, no_color=not colour, width=width, highlight=False, emoji=False, markup=False
    )
    console.print(Group(*_parts(report), *([Text(f"report: {where}")] if where else [])))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _parts(report: ProfileReport) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(f"{report.recipe} on {report.host}, profile {report.run_id}", "bold"), ""]
    if report.refused:
        parts += [Text("REFUSED: there is no step to show", "bold red"), ""]
    sides = summary.sides(report)
    for side, arm in zip(sides, (report.candidate, report.oracle), strict=True):
        if arm is not None:
            parts += [Text(summary.headline(arm, side)), _families(arm), ""]
    if report.attribution is not None:
        delta = report.attribution
        lines = (summary.delta_line(delta), summary.drift_line(delta), *summary.notes(delta))
        parts += [_levers(delta, sides), *(Text(line) for line in lines), ""]
    for side, arm in zip(sides, (report.candidate, report.oracle), strict=True):
        if arm is not None:
            parts += [Text(f"{side}: {note}", "dim") for note in arm.notes]
    for found in report.findings:
        parts.append(Text(f"{found.code}: {found.message}; {found.hint}"))
    if (lacks := summary.missing(report)) is not None:
        parts.append(Text(lacks))
    if report.ended is not None:
        parts.append(Text(f"ended early: {plain(report.ended)}"))
    return parts


def _table(*columns: str) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, column in enumerate(columns):
        made.add_column(column, justify="left" if number == 0 else "right")
    return made


def _families(arm: StepTable) -> Table:
    has_own = arm.own_us is not None
    made = _table("family", "launches", "µs", *(["own µs"] if has_own else []), "GB", "GB/s", "of roof")
    for row in summary.families(arm):
        made.add_row(
            row.title,
            f"{row.launches:g}",
            f"{row.us:.1f}",
            *([summary.us_text(row.own_us)] if has_own else []),
            summary.giga(row.nbytes),
            summary.rate_text(row.bytes_per_s),
            summary.share_text(row.share),
        )
    made.add_row(
        "sum", f"{arm.launches:g}", f"{arm.sum_us:.1f}", *([summary.us_text(arm.own_us)] if has_own else []), "", "", ""
    )
    return made


def _levers(found: Attribution, sides: tuple[str, str]) -> Table:
    made = _table("lever", *(f"{side} µs" for side in sides), "delta µs")
    made.add_column("rests on", justify="left")
    for lever in found.levers:
        made.add_row(
            lever.name,
            f"{lever.candidate_us:.1f}",
            f"{lever.oracle_us:.1f}",
            summary.signed(lever.delta_us),
            Text(lever.proof, STYLES[lever.proof]),
        )
    made.add_row(summary.residual_title(found), *summary.residual_sides(found), summary.signed(found.residual_us), "")
    return made
