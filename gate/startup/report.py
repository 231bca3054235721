"""8 The table of `gate startup`, as text and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gate import shell
from gate.binding import MIN_REPETITIONS
from gate.metrics.startup import START_AXES
from gate.observe.rows import ARMS
from gate.report import table
from gate.runs import from_here
from gate.startup.record import StartupReport
from gate.units import DASH, gib, number

TITLES = {"port_open_s": "port open s", "ready_s": "ready s", "first_token_s": "first token s"}
HEAD = ("", "candidate", "oracle", "ratio", "verdict")
STARTS = ("start", "arm", "checkpoint", "port open s", "ready s", "first token s", "peak RSS", "available fell by")


WITHOUT_HISTORY = (
    "indicative: how far apart equal starts come out is assumed, not measured, so no start-up verdict binds"
)


def headline(made: StartupReport) -> str:
    cache = {None: "as found", "cold": "cold", "warm": "warm"}.get(made.wanted_cache, made.wanted_cache)
    state = ", unfinished" if made.unfinished else ""
    return f"start-up of {made.recipe} on {made.host}, checkpoint {cache}: {made.verdict}, indicative{state}"


def rows(made: StartupReport) -> tuple[tuple[str, ...], ...]:
    """One for each axis: medians, ratio with its interval, verdict."""
    return tuple(
        (
            TITLES[cell.axis] + (" *" if cell.primary else ""),
            number(cell.candidate_median),
            number(cell.oracle_median),
            table.ratio_text(cell),
            cell.verdict.value,
        )
        for cell in made.cells
    )


def start_rows(made: StartupReport) -> tuple[tuple[str, ...], ...]:
    """One for each start, as it was; a start that does not count shows its stamps all the same in starts.parquet."""
    return tuple(
        (
            str(start.repetition),
            start.arm,
            start.page_cache or DASH,
            *(number(value(start)) for value in START_AXES.values()),
            gib(start.load_peak_rss_bytes),
            gib(start.available_drop_bytes),
        )
        for start in made.starts
    )


def notes(made: StartupReport) -> tuple[str, ...]:
    said = [f"{finding.message}; {finding.hint}" for finding in made.findings]
    said += [f"{TITLES[c.axis]}: {r.message}; {r.hint}" for c in made.cells if c.primary for r in c.reasons]
    if made.unfinished:
        count = f"unfinished: {len(made.starts)} of {made.repetitions * len(ARMS)} starts were made"
        said.insert(0, ": ".join(filter(None, (count, made.ended))))
    if made.repetitions < MIN_REPETITIONS:
        said.append(f"fewer than {MIN_REPETITIONS} starts of each arm: found {made.repetitions}; --reps asks for more")
    return tuple(dict.fromkeys(map(table.plain, (WITHOUT_HISTORY, *said))))


def text(made: StartupReport) -> str:
    lines = [headline(made), "", *_aligned((HEAD, *rows(made))), "", *_aligned((STARTS, *start_rows(made)))]
    return "\n".join([*lines, *(("", *notes(made)) if notes(made) else ())]) + "\n"


def markdown(made: StartupReport) -> str:
    parts = [f"# {headline(made)}", _pipes(HEAD, rows(made)), "## Starts, in order", _pipes(STARTS, start_rows(made))]
    if told := notes(made):
        parts += ["## Notes", "\n".join(f"* {note}" for note in told)]
    return "\n\n".join([*parts, "`*` decides. Times are from the spawn of the server's process."]) + "\n"


def show(made: StartupReport, folder: Path) -> None:
    shell.table(text(made) + f"\nreport  {from_here(folder / 'startup.md')}\n")


def _aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _pipes(head: Sequence[str], lines: Sequence[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ("---",) * len(head), *lines))
