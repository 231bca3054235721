"""8 `gate show` and `gate report`: by the flow whose folder it is."""

from __future__ import annotations

from pathlib import Path

from gate import asides, conclude, messages, shell
from gate.errors import StorageError
from gate.observe import seals
from gate.observe.kinds import KINDS, kind_of
from gate.runs import find
from gate.tokenrun import folder as token_runs
from gate.tokenrun import show as token_reports


def show(name: str | None, out: Path, every: bool) -> None:
    """Print a report as it was written.

    every: all cells of a run, not only the primary ones. Raises UsageError where no folder is meant, StorageError where
    it has no report.
    """
    found = find(name, out, KINDS)
    if kind_of(found) != "run":
        asides.show(found)
    elif token_runs.is_token_run(found):
        token_reports.print_report(token_reports.stored(found), found)
    else:
        conclude.print_table(conclude.stored(found), found, every)


def report(name: str | None, out: Path) -> int:
    """Derive a report anew from raw records and print it; returns its exit code. Raises as show."""
    return again(find(name, out, KINDS))


def again(folder: Path) -> int:
    """The same of a folder.

    It mends a report that was changed or has lost its seal, and says so: the records that it comes from have their own.
    """
    doubt = _doubt(folder)
    code = _derive(folder)
    if doubt is not None:  # not before: where the records cannot be trusted either, that is the one line
        shell.say("gate", messages.derived_anew(doubt), code)
    return code


def _derive(folder: Path) -> int:
    if kind_of(folder) != "run":
        return asides.derive(folder)
    derived = token_reports.conclude(folder) if token_runs.is_token_run(folder) else conclude.conclude(folder)
    return derived.exit_code


def _doubt(folder: Path) -> StorageError | None:
    """Why the report that lies there is not the one that was written."""
    try:
        seals.check_report(folder)
    except StorageError as error:
        return error
    return None
