"""8 `gate show` and `gate report`: by the flow whose folder it is."""

from __future__ import annotations

from pathlib import Path

from gate import asides, conclude
from gate.runs import KINDS, find, kind_of
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
    found = find(name, out, KINDS)
    if kind_of(found) != "run":
        return asides.derive(found)
    derived = token_reports.conclude(found) if token_runs.is_token_run(found) else conclude.conclude(found)
    return derived.exit_code
