"""Report -> SVG: the ratio by concurrency with its band, and throughput against latency for both arms."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gate.observe.rows import Verdict
from gate.report import table
from gate.report.model import Cell, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, QUIET, RULE = "#1c2430", "#667080", "#d5dae1"
CANDIDATE, ORACLE = "#1257a0", "#8a5a14"
SERIES = (("#1257a0", "o"), ("#a03d12", "s"), ("#2c7a4b", "^"), ("#6a3d9a", "D"), ("#444b55", "v"))
"""Colour and marker together, so that a print in grey still tells the series apart."""

STYLE = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and the file is a third of the size
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 9,
    "axes.edgecolor": RULE,
    "axes.labelcolor": QUIET,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#eceff3",
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "legend.frameon": False,
}

THROUGHPUT, LATENCY = "output_throughput", "tpot_median_ms"
SIZE_INCHES = (5.6, 3.5)


RATIO_FILE, LATENCY_FILE = "ratio.svg", "latency.svg"
CAPTIONS = {RATIO_FILE: "Ratio by concurrency", LATENCY_FILE: "Throughput against latency"}


def render(report: Report) -> dict[str, str]:
    """File name -> SVG text. The same report gives the same bytes."""
    draw: dict[str, Callable[[Report, Axes], None]] = {RATIO_FILE: _ratio, LATENCY_FILE: _latency}
    return {name: svg(name, functools.partial(draw[name], report)) for name in drawn(report)}


def drawn(report: Report) -> tuple[str, ...]:
    """Names of the plots that have something to show: a plot without a point is a sentence instead."""
    ratios = any(cell.primary and cell.ratio is not None for cell in report.cells)
    points = any(_points(report, arm) for arm in ("candidate", "oracle"))
    return tuple(name for name, has in ((RATIO_FILE, ratios), (LATENCY_FILE, points)) if has)


def missing(report: Report) -> tuple[str, ...]:
    """One sentence for each plot that is not drawn, saying what it lacks."""
    there, sentences = drawn(report), []
    if RATIO_FILE not in there:
        sentences.append("No plot of ratios: no primary cell has one.")
    if LATENCY_FILE not in there:
        lacking = [
            f"{table.axis_title(axis, '').strip()} has none ({', '.join(_states(report, axis))})"
            for axis in (THROUGHPUT, LATENCY)
            if all(
                _median(report, axis, c, arm) is None for c in report.concurrencies for arm in ("candidate", "oracle")
            )
        ]
        why = "; ".join(lacking) or "none has both"
        sentences.append(f"No plot of throughput against latency, which needs both figures at a concurrency: {why}.")
    return tuple(sentences)


def svg(name: str, draw: Callable[[Axes], None]) -> str:
    # Half a second that only what is drawn should cost.
    import matplotlib
    from matplotlib.figure import Figure

    # The salt makes element ids reproducible, and different in the two plots, which share one page.
    style: Any = STYLE | {"svg.hashsalt": name}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _ratio(report: Report, axes: Axes) -> None:
    """One series per primary axis, side by side at each concurrency; the band is the strip below the floor."""
    places = {concurrency: place for place, concurrency in enumerate(report.concurrencies)}
    names = table.axes(report, primary_only=True)
    for number, (axis, unit) in enumerate(names):
        colour, marker = SERIES[number % len(SERIES)]
        shift = 0.14 * (number - (len(names) - 1) / 2)
        cells = [c for c in report.cells if c.axis == axis and c.ratio is not None]
        axes.errorbar(
            [places[c.concurrency] + shift for c in cells],
            [c.ratio if c.ratio is not None else math.nan for c in cells],
            yerr=_bars(cells),
            fmt=marker,
            markersize=5,
            color=colour,
            elinewidth=1.2,
            capsize=2,
            label=table.axis_title(axis, unit).rsplit(" ", 1)[0],
        )
    primary = [c for c in report.cells if c.primary]
    if primary:
        floor, band = primary[0].floor, primary[0].band
        axes.axhspan(floor - band, floor, color="#e3e7ed", lw=0, label=f"band {100 * band:g} %")
        axes.axhline(floor, color=INK, lw=0.9)
    for concurrency, place in places.items():
        if void := _without_ratio([c for c in primary if c.concurrency == concurrency]):
            axes.annotate(void, (place, 0.02), xycoords=("data", "axes fraction"), ha="center", color=QUIET, size=8)
    axes.set_xticks(range(len(places)), [f"c{concurrency}" for concurrency in places])
    axes.set_xlim(-0.5, max(len(places) - 0.5, 0.5))
    axes.set_ylabel("ratio; above the line the candidate is better")
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.12)
    if primary:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=4, handletextpad=0.4, columnspacing=1.2)


def _without_ratio(cells: Sequence[Cell]) -> str:
    """Bounds, then "VOID", with the axes they are about, one a line; empty when all have a ratio."""

    def title(cell: Cell) -> str:
        return table.axis_title(cell.axis, cell.unit).rsplit(" ", 1)[0]

    void = [c for c in cells if c.verdict is Verdict.VOID]
    if void and len(void) == len(cells):
        return "all VOID"
    bounds = [f"{title(c)} {table.ratio_text(c).rstrip(table.BOUND)}" for c in cells if c.bounded]
    return "\n".join([*bounds, *(["VOID:"] if void else []), *map(title, void)])


def _bars(cells: Sequence[Cell]) -> list[list[float]]:
    """Distances below and above the ratio, as errorbar wants them; none where there is no interval.

    The interval is that of the mean paired ratio; where it does not hold the ratio of medians, the bar ends there.
    """
    below = [max((c.ratio or 0) - c.ratio_low, 0) if c.ratio_low is not None else 0.0 for c in cells]
    above = [max(c.ratio_high - (c.ratio or 0), 0) if c.ratio_high is not None else 0.0 for c in cells]
    return [below, above]


def _latency(report: Report, axes: Axes) -> None:
    """Each arm's path through the concurrencies: up and to the left is better."""
    axes.set_xlabel("TPOT median, ms")
    axes.set_ylabel("output throughput, tok/s")
    for arm, colour, marker in (("oracle", ORACLE, "s"), ("candidate", CANDIDATE, "o")):
        points = _points(report, arm)
        axes.plot(
            [x for x, _, _ in points], [y for _, y, _ in points], color=colour, marker=marker, ms=5, lw=1.2, label=arm
        )
        for x, y, concurrency in points:
            offset, align = ((6, -10), "left") if arm == "oracle" else ((-6, 5), "right")
            axes.annotate(f"c{concurrency}", (x, y), offset, textcoords="offset points", ha=align, color=colour, size=8)
    axes.margins(0.14)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=2)


def _points(report: Report, arm: str) -> list[tuple[float, float, int]]:
    """(latency, throughput, concurrency) where the arm has both."""
    return [
        (latency, throughput, concurrency)
        for concurrency in report.concurrencies
        if (latency := _median(report, LATENCY, concurrency, arm)) is not None
        and (throughput := _median(report, THROUGHPUT, concurrency, arm)) is not None
    ]


def _states(report: Report, axis: str) -> list[str]:
    """The verdicts of an axis's cells and their reasons, each once."""
    cells = [c for c in report.cells if c.axis == axis]
    if not cells:
        return ["not reported"]
    return list(dict.fromkeys(f"{c.verdict}: {', '.join(dict.fromkeys(r.code for r in c.reasons))}" for c in cells))


def _median(report: Report, axis: str, concurrency: int, arm: str) -> float | None:
    cell = table.cell_of(report, axis, concurrency)
    if cell is None:
        return None
    return cell.candidate_median if arm == "candidate" else cell.oracle_median
