"""What every printer shows in its tables, as text: one place decides words, digits and order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gate.observe.rows import Verdict
from gate.report.model import Cell, Reason, Report, TokenCell
from gate.units import number, ratio

SHORT = {"output_throughput": "output", "total_throughput": "total", "request_throughput": "requests"}
"""Axis names that need no statistic."""


def plain(text: str) -> str:
    """One printable line: servers' error texts may hold escape codes and line breaks."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def axis_title(axis: str, unit: str) -> str:
    """`ttft_median_ms` -> `TTFT median ms`; `output_throughput` -> `output tok/s`."""
    if axis in SHORT:
        return f"{SHORT[axis]} {unit}"
    family, statistic, _ = axis.split("_")
    return f"{family.upper()} {statistic} {unit}"


def cell_of(report: Report, axis: str, concurrency: int) -> Cell | None:
    return next((c for c in report.cells if (c.axis, c.concurrency) == (axis, concurrency)), None)


def axes(report: Report, *, primary_only: bool) -> tuple[tuple[str, str], ...]:
    """(axis, unit) in report order, each once."""
    chosen = [c for c in report.cells if c.primary or not primary_only]
    return tuple(dict.fromkeys((c.axis, c.unit) for c in chosen))


def ratio_text(cell: Cell) -> str:
    """The ratio with its interval; for VOID the reason codes and no number at all."""
    if cell.verdict is Verdict.VOID:
        return ", ".join(dict.fromkeys(reason.code for reason in cell.reasons))
    if cell.ratio is None:
        return ", ".join(reason.code for reason in cell.reasons)
    if cell.ratio_low is None or cell.ratio_high is None:
        return ratio(cell.ratio)
    return f"{ratio(cell.ratio)} ({ratio(cell.ratio_low)}–{ratio(cell.ratio_high)})"


def medians_text(cell: Cell) -> str:
    """`candidate / oracle`, both in the cell's unit."""
    return f"{number(cell.candidate_median)} / {number(cell.oracle_median)}"


def headline(report: Report) -> str:
    """`PASS, binding` or `FAIL, indicative`."""
    return f"{report.verdict}, {'binding' if report.binding else 'indicative'}"


def counts_text(report: Report) -> str:
    parts = [f"{report.counts.get(verdict.value, 0)} {verdict.value}" for verdict in Verdict]
    return f"{len(report.cells)} cells: " + ", ".join(parts)


def token_text(tokens: Sequence[TokenCell]) -> str:
    """One line over all concurrencies."""
    if not tokens:
        return "not compared"
    sums = {name: sum(getattr(t, name) for t in tokens) for name in ("sequences", "exact", "near_tie", "diverged")}
    unjudged = sum(t.unjudged for t in tokens)
    margins = [t.max_margin_nats for t in tokens if t.max_margin_nats is not None]
    worst = f"; largest margin {number(max(margins), 3)} nats, bound {tokens[0].bound_nats:g}" if margins else ""
    return (
        f"{sums['exact']} of {sums['sequences']} sequences exact, {sums['near_tie']} near ties, "
        f"{sums['diverged']} diverged, {unjudged} unjudged{worst}"
    )


def token_verdict(tokens: Sequence[TokenCell]) -> Verdict:
    """The worst of all concurrencies, in the grid's order of precedence."""
    found = {t.verdict for t in tokens}
    for verdict in (Verdict.FAIL, Verdict.VOID, Verdict.INCONCLUSIVE):
        if verdict in found:
            return verdict
    return Verdict.PASS if found else Verdict.INCONCLUSIVE


def token_verdict_text(tokens: Sequence[TokenCell]) -> str:
    """`PASS`, or `VOID at c4`: the worst verdict and where it is."""
    worst = token_verdict(tokens)
    where = ", ".join(f"c{t.concurrency}" for t in tokens if t.verdict is worst)
    return worst.value if worst is Verdict.PASS or not where else f"{worst} at {where}"


def client_text(report: Report) -> str:
    if report.client is None:
        return "not measured"
    c = report.client
    streams = "" if c.streams is None else f" at {c.streams} streams"
    return f"{number(c.cpu_us_per_event, 3)} µs CPU per event, skew p50 {number(c.skew_p50_ms, 2)} ms{streams}"


@dataclass(frozen=True, slots=True)
class Why:
    """One reason code, and the cells that it decided."""

    code: str
    message: str
    """Of the first cell; the others differ in figures only."""
    hint: str
    cells: tuple[str, ...]
    """`c8 TPOT median`, in report order."""

    def where(self, most: int = 3) -> str:
        shown = ", ".join(self.cells[:most])
        return shown if len(self.cells) <= most else f"{shown} and {len(self.cells) - most} more"


def reasons(report: Report) -> tuple[Why, ...]:
    """Why primary cells and tokens are not PASS, each code once, in report order."""
    found: dict[str, list[tuple[str, Reason]]] = {}
    for cell in report.cells:
        if cell.primary and cell.verdict is not Verdict.PASS:
            title = f"c{cell.concurrency} {axis_title(cell.axis, cell.unit).rsplit(' ', 1)[0]}"
            for reason in cell.reasons:
                found.setdefault(reason.code, []).append((title, reason))
    for tokens in report.tokens:
        for reason in tokens.reasons:
            found.setdefault(reason.code, []).append((f"c{tokens.concurrency} tokens", reason))
    return tuple(
        Why(code, said[0][1].message, said[0][1].hint, tuple(dict.fromkeys(title for title, _ in said)))
        for code, said in found.items()
    )
