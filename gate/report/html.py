"""Report -> report.html: one file, nothing loaded from elsewhere, everything escaped."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import jinja2
from markupsafe import Markup

from gate import units
from gate.compare import show
from gate.report import plots, residency, table, tokens
from gate.report.model import Report

TEMPLATE = "report.html.j2"


def render(report: Report, drawn: Mapping[str, str] | None = None) -> str:
    """The page, with the plots inside it; drawn: those that plots.render made, where they are there already."""
    figures = plots.render(report) if drawn is None else drawn
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(TEMPLATE).render(
        report=report,
        table=table,
        tokens=tokens,
        residency=residency,
        units=units,
        show=show,
        command=shlex.join,
        figures=[(plots.CAPTIONS[name], _inline(svg)) for name, svg in figures.items()],
        not_drawn=plots.missing(report),
    )


def _printable(value: object) -> object:
    """Servers' error texts may hold control characters, which HTML does not allow even escaped."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(c if c.isprintable() else " " for c in value)


def _inline(svg: str) -> Markup:
    """The svg element alone. It is trusted: plots.py writes it from numbers and its own words, no run's text."""
    found = re.search(r"<svg.*</svg>", svg, re.DOTALL)
    if found is None:
        raise ValueError("not an SVG document")
    return Markup(found.group())
