"""Report -> report.md: the tables of the terminal, for a pull request or an issue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gate.compare import show
from gate.observe.rows import Verdict
from gate.report import plots, residency, table, tokens
from gate.report.model import ArmSummary, Cell, Report
from gate.units import DASH, counted

ESCAPED = "\\`*_{}[]<>|#"
"""Characters that a Markdown renderer could take for markup."""


def render(report: Report) -> str:
    """GitHub-flavoured Markdown; nothing in it depends on when or where it is rendered."""
    parts = [
        f"# {_text(report.recipe)} on {_text(report.host)}: {table.headline(report)}",
        _text(table.sentence(report)),
        _summary(report),
        "## Primary cells",
        "Ratio (95 % interval), direction-normalised: 1 or more means the candidate is at least as good. "
        f"Needed: {_needed(report)}.",
        _primary(report),
        *table.footnotes(report.cells),
        *(f"![{plots.CAPTIONS[name]}]({name})" for name in plots.drawn(report)),
        *plots.missing(report),
        *_regression(report),
        "## Tokens",
        _tokens(report),
        *_own(report),
        *_noise(report),
        *table.footnotes((), report.tokens),
    ]
    if why := table.reasons(report):
        rows = [(f"`{w.code}`", _text(w.where()), _text(w.message), _text(w.hint)) for w in why]
        parts += ["## Why not PASS", _rows(("reason", "cells", "found and expected", "what to do"), rows)]
    if report.not_binding_because:
        parts += ["## Why indicative", "\n".join(f"* {_text(reason)}" for reason in report.not_binding_because)]
    parts += ["## All cells", _all(report), "## Machine", _machine(report)]
    return "\n\n".join(parts) + "\n"


def _text(text: str) -> str:
    """One line without markup: names, messages and versions come from servers and command lines."""
    return "".join(f"\\{c}" if c in ESCAPED else c for c in table.plain(text))


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    rule = ["---:" if column in right else "---" for column in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def _needed(report: Report) -> str:
    cells = [c for c in report.cells if c.primary]
    return f"{cells[0].floor - cells[0].band:.3f}" if cells else DASH


def _summary(report: Report) -> str:
    servers = (
        ("KV cache", table.capacity_text(report)),
        ("weights", residency.weights_text(report.candidate, report.oracle)),
        ("kernels", residency.kernels_text(report.candidate, report.oracle)),
        ("start-up", table.start_text(report)),
    )
    rows = [
        ("candidate", _arm(report.candidate)),
        ("oracle", _arm(report.oracle)),
        ("cells", table.counts_text(report)),
        ("tokens", f"{table.token_text(report.tokens)}, {table.token_verdict_text(report.tokens)}"),
        ("noise", table.noise_text(report)),
        ("client", table.client_text(report)),
        *((label, _text(told)) for label, told in servers if told is not None),
        *(("note", _text(note)) for note in report.notes),
        ("started", report.started_at),
        ("finished", report.finished_at or "not finished"),
        ("run", f"`{_text(report.run_id)}`, plan `{_text(report.plan_id)}`, {counted(len(report.order), 'leg')}"),
    ]
    return _rows(("", ""), rows)


def _arm(arm: ArmSummary) -> str:
    digest = f" (sha256 {_text(arm.checkpoint_digest)})" if arm.checkpoint_digest else ""
    version = f" {_text(arm.version)}" if arm.version else ""
    made = residency.build_text(arm.build)
    where = f"{_text(arm.name)}{version}, {f'{_text(made)}, ' if made else ''}{_text(arm.checkpoint)}{digest}"
    return f"{where}, KV {_text(arm.kv_cache_dtype or DASH)}"


def _verdict(cell: Cell | None) -> str:
    if cell is None:
        return DASH
    strong = "**" if cell.verdict is Verdict.FAIL else ""
    return f"{table.ratio_text(cell)} {strong}{cell.verdict}{strong}"


def _primary(report: Report) -> str:
    axes = table.axes(report, primary_only=True)
    head = ("conc", *(table.axis_title(axis, unit).rsplit(" ", 1)[0] for axis, unit in axes))
    rows = [
        (str(concurrency), *(_verdict(table.cell_of(report, axis, concurrency)) for axis, _ in axes))
        for concurrency in report.concurrencies
    ]
    return _rows(head, rows, right=(0,))


def _regression(report: Report) -> list[str]:
    if report.regression is None:
        return []
    strong = "**" if report.regression.verdict == "loss" else ""
    told = [f"{strong}{_text(line)}{strong}" for line in show.lines(report.regression)]
    rows = [tuple(map(_text, show.row(cell))) for cell in report.regression.cells]
    return ["## Regression", *told, _rows(show.HEAD, rows, right=(0,))]


def _tokens(report: Report) -> str:
    names = ("sequences", "exact", "near tie", "undecided", "diverged", "unjudged", "largest margin", "bound")
    head = ("conc", *names, "verdict")
    rows = [
        (
            str(t.concurrency),
            *table.token_row(t),
            t.verdict.value,
        )
        for t in report.tokens
    ]
    return _rows(head, rows, right=range(9))


def _own(report: Report) -> tuple[str, ...]:
    """The oracle by its own measure, where it was asked."""
    rows = tokens.own_rows(report.tokens)
    if not rows:
        return ()
    return "The oracle by its own measure:", _rows(tokens.OWN_HEAD, rows, right=range(len(rows[0]))), tokens.OWN_NOTE


def _noise(report: Report) -> tuple[str, ...]:
    """The candidate's noise beside the oracle's, where it decides."""
    rows = tokens.noise_rows(report.tokens)
    return (_rows(tokens.NOISE_HEAD, rows, right=range(5)), tokens.NOISE_NOTE) if rows else ()


def _all(report: Report) -> str:
    head = ("conc", "axis", "unit", "candidate", "oracle", "ratio", "verdict")
    rows = [
        (
            str(c.concurrency),
            f"`{c.axis}`" + (" primary" if c.primary else ""),
            table.unit_text(c.unit),
            table.amount(c.candidate_median, c.unit),
            table.amount(c.oracle_median, c.unit),
            table.ratio_text(c),
            c.verdict.value,
        )
        for c in report.cells
    ]
    return _rows(head, rows, right=(0, 3, 4))


def _machine(report: Report) -> str:
    return _rows(("", ""), [(_text(key), _text(value)) for key, value in report.machine.items()])
