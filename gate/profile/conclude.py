"""5 to 8 Raw windows on disk -> checks, step tables, levers, every report file; the exit code.

0: shown and every lever proven or below the drift; 2: something in it is unproven, or was not traced; 3: refused, no
step to show.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from gate import shell
from gate.errors import INCONCLUSIVE, PASS, VOID, UsageError
from gate.observe.rows import ARMS, Arm
from gate.profile import checks, markdown, plots, store, table
from gate.profile.checks import not_closed
from gate.profile.checks.evidence import Evidence
from gate.profile.difference import step_table
from gate.profile.levers import Drift, attribute, drift_of
from gate.profile.modules import with_modules
from gate.profile.rows import ProfileReport, StepTable, Traced
from gate.profile.store import ArmRecord, ProfileData, ProfileStore
from gate.runs import from_here

PAGE = "profile.md"
PLAIN_WIDTH = 120
"""Columns where standard output is a file or a pipe."""
BOTH = tuple(Traced(arm=arm, role="measured") for arm in ARMS)
"""What every profile has to have, whatever else was planned."""
NO_CONTROL = "both arms, no control was profiled"


def derive(data: ProfileData) -> ProfileReport:
    """Pure."""
    tables = {arm: made for arm in ARMS if (made := _table(data, arm, "measured")) is not None}
    evidence = Evidence(data.windows, tables, _drift(data, tables))
    found = checks.findings(evidence)
    refused = any(finding.code in checks.REFUSING for finding in found)
    doubts = [finding.message for finding in found if finding.code == not_closed.CODE]
    shown = {} if refused else tables
    both = len(shown) == len(ARMS)
    return ProfileReport(
        run_id=data.file.run_id,
        recipe=data.file.recipe,
        host=data.file.host,
        started_at=data.file.started_at,
        candidate=shown.get("candidate"),
        oracle=shown.get("oracle"),
        attribution=attribute(shown["candidate"], shown["oracle"], evidence.drift, doubtful="; ".join(doubts))
        if both
        else None,
        findings=found,
        ended=data.ended,
        missing=tuple(one for one in data.file.planned or BOTH if not _traced(data, one)),
        refused=refused,
    )


def compare(one: ProfileData, other: ProfileData) -> ProfileReport:
    """Two profiles' candidates: `one` stands as candidate, `other` as what it is compared with.

    Raises UsageError where they were not made alike: two tools trace differently, two batches are two steps.
    """
    for field in ("recipe", "backend", "concurrency", "prompt_tokens"):
        mine, theirs = getattr(one.file, field), getattr(other.file, field)
        if mine != theirs:
            raise UsageError(
                f"{one.file.run_id} has {field} {mine}, {other.file.run_id} {theirs}",
                expected="two profiles made alike",
            )
    reports = [derive(data) for data in (one, other)]
    tables = [report.candidate for report in reports]
    if tables[0] is None or tables[1] is None:
        refused = tuple(f for report in reports for f in report.findings)
        return reports[0].model_copy(
            update={"findings": refused, "refused": True, "candidate": None, "oracle": None, "attribution": None}
        )
    named = [t.model_copy(update={"name": d.file.run_id}) for t, d in zip(tables, (one, other), strict=True) if t]
    drift = drift_of(named[0], named[1], "both profiles")
    found = tuple(
        f for report in reports for f in report.findings if f.arm == "candidate" and f.code not in checks.REFUSING
    )
    doubts = "; ".join(f.message for f in found if f.code == not_closed.CODE)
    return ProfileReport(
        run_id=f"{one.file.run_id} against {other.file.run_id}",
        recipe=one.file.recipe,
        host=one.file.host,
        started_at=one.file.started_at,
        candidate=named[0],
        oracle=named[1],
        attribution=attribute(named[0], named[1], drift, doubtful=doubts),
        findings=found,
        refused=False,
    )


def exit_code(report: ProfileReport) -> int:
    if report.refused:
        return VOID
    if report.missing or report.attribution is None:  # cut short, after one arm or in the control
        return INCONCLUSIVE
    unproven = any(lever.proof == "unproven" for lever in report.attribution.levers)
    return INCONCLUSIVE if report.findings or unproven else PASS


def conclude(folder: Path) -> int:
    """Derive and write every report file again, print the table; the exit code."""
    report, place = derive(store.read(folder)), ProfileStore(folder)
    place.write_report(report)
    place.write_text(PAGE, markdown.render(report))
    for name, text in plots.render(report).items():
        place.write_text(name, text)
    place.seal_report()
    show(report, folder)
    return exit_code(report)


def show(report: ProfileReport, folder: Path | None = None) -> None:
    """To standard output; folder: where the whole report lies."""
    console = Console()
    width = console.width if console.is_terminal else PLAIN_WIDTH
    where = None if folder is None else from_here(folder / PAGE)
    shell.table(table.render(report, colour=console.is_terminal, width=width, where=where))


def _table(data: ProfileData, arm: Arm, role: str) -> StepTable | None:
    made = sorted((w for w in data.windows if w.arm == arm and w.role == role), key=lambda w: w.output_tokens)
    record = next((a for a in data.arms if a.arm == arm and a.role == role), None)
    if len(made) != 2 or record is None or not all(w.kernels for w in made):
        return None
    made_table = step_table(record.name, made[0], made[1], record.wall, data.file.roof_bytes_per_s)
    placed = with_modules(made_table, data.census)
    return placed.model_copy(update={"notes": (*placed.notes, *_held(data, record))})


def _traced(data: ProfileData, one: Traced) -> bool:
    """Whether it is there in full: the record of an arm is written before its windows."""
    windows = [window for window in data.windows if (window.arm, window.role) == (one.arm, one.role)]
    return len(windows) == 2 and any((record.arm, record.role) == (one.arm, one.role) for record in data.arms)


def _held(data: ProfileData, record: ArmRecord) -> tuple[str, ...]:
    """What the arm says it holds, beside what a step reads of the checkpoint as shipped: bytes are the census's."""
    if record.resident_bytes is None:
        return ()
    read = sum(module.nbytes for module in data.census if module.scheme != "state")
    return (f"holds {record.resident_bytes / 1e9:.2f} GB of weights; a step reads {read / 1e9:.2f} GB as shipped",)


def _drift(data: ProfileData, tables: dict[Arm, StepTable]) -> Drift:
    """From the arm that was profiled twice; else from what both arms share."""
    for arm, measured in tables.items():
        control = _table(data, arm, "control")
        if control is not None:
            return drift_of(measured, control, f"the {arm} before and after the other arm")
    if len(tables) == len(ARMS):
        return drift_of(tables["candidate"], tables["oracle"], NO_CONTROL)
    return Drift(None, "one arm alone")
