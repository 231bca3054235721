"""Report -> every file of a report, by name. The caller writes them (observe/store.py)."""

from __future__ import annotations

from gate.report import html, jsonfile, markdown, plots
from gate.report.model import Report


def render_all(report: Report) -> dict[str, str]:
    """report.json, report.md, report.html, ratio.svg, latency.svg -> text."""
    drawn = plots.render(report)
    return {
        "report.json": jsonfile.render(report),
        "report.md": markdown.render(report),
        "report.html": html.render(report, drawn),
        **drawn,
    }
