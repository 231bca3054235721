"""8 A profile as profile.md: the same tables, and every kernel with its family, modules and rule."""

from __future__ import annotations

from gate.profile import names, plots, summary
from gate.profile.rows import Attribution, ProfileReport, StepTable
from gate.report.table import plain

BELOW_ZERO = (
    "Own µs below 0: other kernels cover all of it in a step, and in prefill, which both windows did, not equally much."
)


def render(report: ProfileReport) -> str:
    lines = [f"# Profile {_cell(report.run_id)}", "", f"{report.recipe} on {report.host}, {report.started_at}.", ""]
    if report.refused:
        lines += ["**Refused: there is no step to show.**", ""]
    if (lacks := summary.missing(report)) is not None:
        lines += [f"{lacks[0].upper()}{lacks[1:]}.", ""]
    if report.ended is not None:
        lines += [f"Ended early: {_cell(plain(report.ended))}", ""]
    if report.findings:
        lines += [f"* `{f.code}`: {_cell(f.message)}; {_cell(f.hint)}" for f in report.findings] + [""]
    if report.attribution is not None:
        lines += _levers(report.attribution)
    tables = [table for table in (report.candidate, report.oracle) if table is not None]
    lines += [f"![{caption}]({name})\n" for name, caption in plots.captions(report).items()]
    for table in tables:
        lines += _families(table)
    for table in tables:
        lines += _kernels(table)
    return "\n".join(lines).rstrip() + "\n"


def _levers(found: Attribution) -> list[str]:
    lines = [
        "## Levers",
        "",
        f"{summary.delta_line(found)}; {_cell(summary.drift_line(found))}.",
        "",
        "| lever | candidate µs | oracle µs | delta µs | rests on |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    lines += [
        f"| {_cell(v.name)} | {v.candidate_us:.1f} | {v.oracle_us:.1f} | {summary.signed(v.delta_us)} | {v.proof} |"
        for v in found.levers
    ]
    ours, theirs = summary.residual_sides(found)
    notes = [f"* {_cell(note)}" for note in summary.notes(found)]
    return [
        *lines,
        f"| {summary.residual_title(found)} | {ours} | {theirs} | {summary.signed(found.residual_us)} | |",
        f"| **sum** | {found.candidate_us:.1f} | {found.oracle_us:.1f} | {summary.signed(found.delta_us)} | |",
        "",
        *([*notes, ""] if notes else []),
    ]


def _families(table: StepTable) -> list[str]:
    lines = [
        f"## {table.arm}: families of a step",
        "",
        summary.headline(table) + ".",
        "",
        "| family | launches | µs | own µs | GB | GB/s | of roof |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row.title} | {row.launches:g} | {row.us:.1f} | {summary.us_text(row.own_us)} | "
        f"{summary.giga(row.nbytes)} | {summary.rate_text(row.bytes_per_s)} | {summary.share_text(row.share)} |"
        for row in summary.families(table)
    ]
    lines += [f"| **sum** | {table.launches:g} | {table.sum_us:.1f} | {summary.us_text(table.own_us)} | | | |", ""]
    return [*lines, *(f"* {_cell(note)}" for note in table.notes), ""]


def _kernels(table: StepTable) -> list[str]:
    shown = names.shown(kernel.name for kernel in table.kernels)
    lines = [
        f"## {table.arm}: kernels of a step",
        "",
        "| kernel | family | modules | launches | µs | own µs | GB | GB/s | of roof | rule |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    lines += [
        f"| {_cell(shown[k.name])} | {k.family} | {', '.join(k.modules)} | {k.launches:g} | {k.us:.2f} | "
        f"{summary.us_text(k.own_us, 2)} | {summary.giga(summary.kernel_bytes(k))} | "
        f"{summary.rate_text(summary.kernel_rate(k))} | "
        f"{summary.share_text(summary.share_of(summary.kernel_rate(k), table.roof_bytes_per_s))} | {_code(k.rule)} |"
        for k in table.kernels
    ]
    below = any(k.own_us is not None and round(k.own_us, 2) < 0 for k in table.kernels)
    return [*lines, "", *([BELOW_ZERO, ""] if below else [])]


def _cell(text: str) -> str:
    """Kernel names are other people's text: nothing in them may end a cell or open a tag."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _code(rule: str) -> str:
    return f"`{rule}`".replace("|", "\\|") if rule else ""
