"""8 A profile as SVG: a stacked bar per arm, one colour a lever, and the roofline of the products."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gate.profile import summary
from gate.profile.levers import IDLE
from gate.profile.roofs import compute
from gate.profile.rows import ProfileReport, StepTable
from gate.report.plots import CANDIDATE, INK, ORACLE, QUIET, STYLE

STACK_FILE, ROOFLINE_FILE = "stack.svg", "roofline.svg"
SIZE_INCHES = (7.2, 3.8)
COLOURS = ("#1257a0", "#a03d12", "#2c7a4b", "#6a3d9a", "#b07d12", "#3d8c8c", "#8a2c55", "#5c6b2f", "#444b55", "#9aa3ae")
MARKS = {"candidate": (CANDIDATE, "o"), "oracle": (ORACLE, "s")}


def render(report: ProfileReport) -> dict[str, str]:
    """File name -> SVG text; the same report gives the same bytes."""
    draw: dict[str, Callable[[ProfileReport, Axes], None]] = {STACK_FILE: _stack, ROOFLINE_FILE: _roofline}
    return {name: _svg(name, functools.partial(draw[name], report)) for name in captions(report)}


def captions(report: ProfileReport) -> dict[str, str]:
    """Only of plots that have something to show."""
    made = {}
    if _tables(report):
        made[STACK_FILE] = "µs of a step by family, both arms"
    if any(row.flops for table in _tables(report) for row in summary.families(table)):
        made[ROOFLINE_FILE] = "Products against the roof"
    return made


def _tables(report: ProfileReport) -> list[StepTable]:
    return [table for table in (report.candidate, report.oracle) if table is not None]


def _svg(name: str, draw: Callable[[Axes], None]) -> str:
    style: Any = STYLE | {"svg.hashsalt": name}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _stack(report: ProfileReport, axes: Axes) -> None:
    """The wall time, where it was measured, is the line across each bar."""
    tables = _tables(report)
    rows = [
        {row.title: row.us if row.own_us is None else row.own_us for row in summary.families(table)}
        | ({IDLE: table.idle_us} if table.idle_us is not None else {})
        for table in tables
    ]
    titles = sorted({title for row in rows for title in row}, key=lambda t: -max(row.get(t, 0.0) for row in rows))
    bottoms = [0.0] * len(tables)
    for number, title in enumerate(titles):
        heights = [row.get(title, 0.0) / 1e3 for row in rows]
        axes.bar(range(len(tables)), heights, 0.55, bottom=bottoms, color=COLOURS[number % len(COLOURS)], label=title)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    for place, table in enumerate(tables):
        if table.wall_us is not None:
            axes.hlines(table.wall_us / 1e3, place - 0.36, place + 0.36, color=INK, lw=1.4)
    axes.set_xticks(range(len(tables)), [f"{table.arm}\n{table.name}" for table in tables])
    axes.set_ylabel("ms a step; the line is the untraced wall time")
    axes.grid(axis="x", visible=False)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)


def _roofline(report: ProfileReport, axes: Axes) -> None:
    """FLOP/s over FLOP per byte, of the products; the slope is the memory's roof, the flat part the matrix units'."""
    ends = [0.5, 8.0]
    for table in _tables(report):
        colour, marker = MARKS[table.arm]
        points = [
            (row.flops / row.nbytes, row.flops / row.us / 1e6, row.title)
            for row in summary.families(table)
            if row.flops and row.nbytes and row.us > 0
        ]
        label = f"{table.arm} {table.name}"
        axes.loglog([x for x, _, _ in points], [y for _, y, _ in points], marker, color=colour, ms=5, label=label)
        for x, y, title in points:
            # The arms' points lie close together: one is labelled to the left of it, the other to the right.
            side, align = ((-6, 2), "right") if table.arm == "candidate" else ((6, -8), "left")
            axes.annotate(title, (x, y), side, textcoords="offset points", ha=align, color=colour, size=7)
        ends += [x * 3 for x, _, _ in points]
    for table in _tables(report)[:1]:
        top, ceiling = table.roof_bytes_per_s, compute(table.device)
        if top is not None:
            ridge = [] if ceiling is None else [ceiling / top]
            xs = sorted([min(ends), max(ends), *(x for x in ridge if x < max(ends))])
            tera = [min(x * top, ceiling or x * top) / 1e12 for x in xs]
            axes.loglog(xs, tera, color=INK, lw=0.9, label=f"roof {top / 1e9:.0f} GB/s")
    axes.set_xlabel("FLOP per byte")
    axes.set_ylabel("TFLOP/s")
    axes.margins(0.12)
    axes.legend(loc="lower right", labelcolor=QUIET, fontsize=8)
