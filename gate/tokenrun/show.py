"""8 Raw records of a token run on disk -> judged report on disk and on the terminal."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from gate import shell
from gate.errors import StorageError
from gate.observe import seals, store
from gate.observe.rows import Verdict
from gate.report import residency, tokens
from gate.report.table import plain
from gate.runs import from_here, no_report, require_records
from gate.tokenrun.folder import read
from gate.tokenrun.judge import judge
from gate.tokenrun.model import KindCell, TieBreak, TokenReport
from gate.units import DASH, counted, number

WIDTH = 120
HEAD = (
    "load",
    "conc",
    "sequences",
    "exact",
    "near tie",
    "undecided",
    "diverged",
    "unjudged",
    "worst",
    "bound",
    "own gap",
)


def conclude(folder: Path, finished_at: str | None = None) -> TokenReport:
    """Judge, write the report, then the terminal marker when the run is finished; print the table.

    Raises StorageError where nothing was measured, or cannot be read.
    """
    data, place = read(folder), store.Store(folder)
    require_records(folder)
    if finished_at is not None:
        data = dataclasses.replace(data, finished_at=finished_at)
    report = judge(data)
    place.write_text("report.json", report.model_dump_json(indent=1) + "\n")
    place.write_text("report.md", markdown(report))
    if seals.is_sealed(folder):
        place.seal_report()
    if finished_at is not None:
        place.complete(finished_at, report.verdict.value, report.exit_code)
    print_report(report, folder)
    return report


def stored(folder: Path) -> TokenReport:
    """The report as it was written. Raises StorageError."""
    try:
        seals.check_shown(folder)
        report = TokenReport.model_validate_json((folder / "report.json").read_bytes())
    except FileNotFoundError as error:
        raise no_report(folder) from error
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise StorageError(
            f"{folder}/report.json cannot be read: {reason}", hint=f"gate report {folder.name}"
        ) from error
    if report.finished_at is not None and not seals.is_complete(folder):
        raise seals.lost_marker(folder)
    return report


def print_report(report: TokenReport, folder: Path) -> None:
    shell.table(terminal(report, from_here(folder / "report.md")))


def row(cell: KindCell, floor_nats: float) -> tuple[str, ...]:
    """As HEAD, and the verdict; a void cell has no figures. floor_nats: near_tie_nats of the recipe."""
    if cell.verdict is Verdict.VOID:
        return (cell.kind, str(cell.concurrency), *(DASH,) * 9, cell.verdict.value)
    counts = (cell.sequences, cell.exact, cell.near_tie, cell.undecided, cell.diverged, cell.unjudged)
    own = None if cell.own is None else cell.own.largest_nats
    bound = tokens.bounds_text(_bounds(cell, floor_nats))
    figures = (number(cell.max_margin_nats, 3), bound, number(own, 3))
    return (cell.kind, str(cell.concurrency), *map(str, counts), *figures, cell.verdict.value)


def _bounds(cell: KindCell, floor_nats: float) -> tuple[float, float]:
    return tokens.applied(floor_nats, cell.near_nats, cell.sequences, cell.own)


def headline(report: TokenReport) -> str:
    return (
        f"tokens of {report.recipe} on {report.host}: {report.verdict}, {'binding' if report.binding else 'indicative'}"
    )


def lines(report: TokenReport) -> list[tuple[str, str]]:
    """(label, text) below the table: what the oracle is like, why not PASS, why indicative."""
    asked = [cell.own for cell in report.cells if cell.own is not None]
    found = [("oracle", tokens.summary(asked))] if asked else []
    judged = (_bounds(cell, report.near_tie_nats) for cell in report.cells if cell.verdict is not Verdict.VOID)
    if any(low < high for low, high in judged):
        found.append(("bound", tokens.BOUNDS_NOTE))
    for cell in report.cells:
        for reason in cell.reasons[:1]:
            found.append((reason.code, f"{cell.kind} c{cell.concurrency}: {reason.message}; {reason.hint}"))
    worst = [one for one in report.divergences if one.judged == "diverged"]
    for one in worst[:3]:
        at = one.position if one.wrong_position is None else one.wrong_position
        nats = "outside the oracle's top 20" if one.outside_top else f"up to {number(one.worst_nats, 3)} nats off"
        whose = "" if one.foreign_index is None else f", goes on with the ids of #{one.foreign_index}"
        where = f"{one.kind} c{one.concurrency} s{one.repetition} #{one.index}"
        found.append(("diverged", f"{where}: {one.wrong_positions} wrong from id {at} on, {nats}{whose}"))
    found += [("tie-break", tie_text(one)) for one in report.tie_breaks]
    held = (("weights", residency.weights_text), ("kernels", residency.kernels_text))
    found += [(label, said) for label, text in held if (said := text(report.candidate, report.oracle)) is not None]
    return found + [("indicative", reason) for reason in report.not_binding_because]


def tie_text(one: TieBreak) -> str:
    """How an arm breaks exact ties of its own log-probs: by itself, no part of the verdict."""
    if not one.positions:
        return f"the {one.arm} gives no log-probs with its ids, so its tie-breaking is not known"
    odd = f"; {one.not_greedy} ids are not its most probable ones" if one.not_greedy else ""
    positions = counted(one.positions, "position")
    if not one.ties:
        return f"the {one.arm} met no exact tie of its own in {positions}{odd}"
    where = "all to the lowest id" if not one.high else f"{one.high} of them to a higher id than the lowest"
    return f"the {one.arm} met {counted(one.ties, 'exact tie')} of its own in {positions}, {where}{odd}"


def _arms(report: TokenReport) -> str:
    sides = (report.candidate, report.oracle)
    ours, theirs = (arm.name if arm.version is None else f"{arm.name} {arm.version}" for arm in sides)
    runs = f"the oracle ran each load {counted(report.repeats, 'time')}, {counted(report.seeds, 'seed')}"
    return f"candidate {ours} against oracle {theirs}; {runs}"


def terminal(report: TokenReport, where: str | None = None) -> str:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in (*HEAD, "verdict"):
        table.add_column(name, justify="left" if name in ("load", "verdict") else "right")
    for cell in report.cells:
        table.add_row(*row(cell, report.near_tie_nats))
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, no_color=True, highlight=False, emoji=False, markup=False)
    console.print(table)
    below = lines(report) + ([("report", where)] if where else [])
    text = [plain(headline(report)), plain(_arms(report)), "", out.getvalue().rstrip(), ""]
    text += [f"{label:<18} {plain(said)}" for label, said in below]
    return "\n".join(line.rstrip() for part in text for line in part.split("\n")) + "\n"


def markdown(report: TokenReport) -> str:
    rows = [row(cell, report.near_tie_nats) for cell in report.cells]
    parts = [f"# {plain(headline(report))}", plain(_arms(report)), _rows((*HEAD, "verdict"), rows)]
    own = [
        (f"{cell.kind} c{cell.concurrency}", *tokens.own_row(cell.own)) for cell in report.cells if cell.own is not None
    ]
    if own:
        parts += ["The oracle by its own measure:", _rows(("load", *tokens.OWN_HEAD[1:]), own), tokens.OWN_NOTE]
    parts.append("\n".join(f"* {label}: {plain(said)}" for label, said in lines(report)))
    machine = [(plain(key), plain(value)) for key, value in report.machine.items()]
    return "\n\n".join([*parts, "## Machine", _rows(("", ""), machine)]) + "\n"


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in body)
