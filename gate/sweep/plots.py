"""8 A sweep -> SVG: prefill rate by prompt length, decode rate by depth."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from gate.report.plots import CANDIDATE, ORACLE, svg
from gate.sweep.points import Point
from gate.sweep.record import SweepReport

PREFILL, DECODE = "prefill.svg", "decode.svg"
CAPTIONS = {PREFILL: "Prefill rate by prompt length", DECODE: "Decode rate by depth"}
LOOKS = {"candidate": (CANDIDATE, "o"), "oracle": (ORACLE, "s")}


def render(made: SweepReport) -> dict[str, str]:
    """File name -> SVG, of the kinds that have a value. The same report gives the same bytes."""
    drawn = {}
    for name, kind in ((PREFILL, "pp"), (DECODE, "tg")):
        if any(one.mean is not None for cell in made.cells if cell.point.kind == kind for one in cell.series):
            draw = _prefill if kind == "pp" else _decode
            drawn[name] = svg(name, functools.partial(draw, made))
    return drawn


def _prefill(made: SweepReport, axes: Axes) -> None:
    points = [cell.point for cell in made.cells if cell.point.kind == "pp"]
    lengths = sorted({point.tokens for point in points})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set_xlabel("prompt tokens")
    axes.set_ylabel("prefill, tok/s")
    _curves(made, axes, points, [point.tokens for point in points], "")


def _decode(made: SweepReport, axes: Axes) -> None:
    """One curve for each number of steps; places by rank, since depth 0 has no place on a logarithmic axis."""
    points = [cell.point for cell in made.cells if cell.point.kind == "tg"]
    depths = sorted({point.depth for point in points})
    axes.set_xticks(range(len(depths)), [str(depth) for depth in depths])
    axes.set_xlabel("depth, tokens in the context")
    axes.set_ylabel("decode, tok/s")
    steps = sorted({point.tokens for point in points})
    for tokens in steps:
        chosen = [point for point in points if point.tokens == tokens]
        label = f" tg{tokens}" if len(steps) > 1 else ""
        _curves(made, axes, chosen, [depths.index(point.depth) for point in chosen], label)


def _curves(made: SweepReport, axes: Axes, points: Sequence[Point], places: Sequence[float], label: str) -> None:
    for arm in made.arms:
        colour, marker = LOOKS[arm]
        by_point = {cell.point: one for cell in made.cells for one in cell.series if one.arm == arm}
        known = [
            (place, one.mean, one.sd or 0.0)
            for point, place in zip(points, places, strict=True)
            if (one := by_point[point]).mean is not None
        ]
        axes.errorbar(
            [place for place, _, _ in known],
            [mean for _, mean, _ in known],
            yerr=[sd for _, _, sd in known],
            color=colour,
            marker=marker,
            markersize=5,
            linewidth=1.2,
            capsize=2,
            label=arm + label,
        )
    axes.set_ylim(bottom=0)
    axes.legend(loc="best")
