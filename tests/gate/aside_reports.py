"""What holds for the report of a sweep, of start-ups and of a profile alike."""

from __future__ import annotations

import functools
import io
import sys
from pathlib import Path

import pytest

from gate import listing, runs, shell, shown
from gate.errors import StorageError
from gate.observe import digests, kinds
from gate.observe.store import Store


def changed_reports_are_refused(folder: Path, name: str, out: Path) -> None:
    """A figure that was edited is not shown; gate report derives the file anew."""
    path, before = folder / name, (folder / name).read_bytes()
    path.write_bytes(before.replace(b"1", b"2", 1))
    with pytest.raises(StorageError, match=f"{name} was changed after it was written"):
        shown.show(folder.name, out, every=False)
    (entry,) = runs.entries(out)
    assert (entry.changed, entry.verdict, entry.complete) == (True, None, False)
    shown.report(folder.name, out)
    assert path.read_bytes() == before
    for content, message in ((b"{", "Invalid JSON"), (b"{}", "Field required"), (b"[]", "should be an object")):
        path.write_bytes(content)
        Store(folder).seal_report()
        with pytest.raises(StorageError, match=message) as refused:
            shown.show(folder.name, out, every=False)
        assert f"gate report {folder.name} writes it anew" in str(refused.value)
    for beside in (path, *kinds.derived(folder)):  # pages and plots: what people read in place of the table
        beside.write_bytes(beside.read_bytes() + b" ")
        with pytest.raises(StorageError, match="was changed after it was written"):
            shown.show(folder.name, out, every=False)
        shown.report(folder.name, out)
    shown.show(folder.name, out, every=False)


def lost_seals_are_told(folder: Path, name: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is shown whose seal is gone; the report's comes back with the report, that of the records does not.

    name: of the report. Leaves the folder as it was.
    """
    seal, records = folder / digests.REPORT, folder / digests.RECORDS
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    first = next(line for line in before[seal].splitlines() if name.encode() in line)
    for content, state in ((None, "is missing"), (b"", "does not name it"), (first + b"\n", "does not name it")):
        seal.unlink() if content is None else seal.write_bytes(content)
        with pytest.raises(
            StorageError,
            match=rf"has no seal: report\.sha256 {state}; expected the digest .*; gate report {folder.name} derives it",
        ):
            shown.show(folder.name, out, every=False)
        (entry,) = runs.entries(out)
        assert (entry.unsealed, entry.verdict, entry.binding in (None, False)) == ("report", None, True)
        assert listing.runs_text((entry,), out).splitlines()[1].endswith("report unsealed")
        capsys.readouterr()
        shown.report(folder.name, out)
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith("gate: ")
        assert f"has no seal: report.sha256 {state}; expected the digest that was noted when it was written; " in said
        assert said.endswith("; it was derived anew from the records, and sealed")
        assert {path: path.read_bytes() for path in before} == before
    records.unlink()
    for ask in (functools.partial(shown.show, every=False), shown.report):
        with pytest.raises(
            StorageError, match=r"records\.sha256 is missing; expected the digests .*; restore it, or measure again"
        ):
            ask(folder.name, out)
    (entry,) = runs.entries(out)
    assert (entry.unsealed, entry.verdict) == ("records", None)
    assert listing.runs_text((entry,), out).splitlines()[1].endswith("records unsealed")
    records.write_bytes(before[records])


def changed_records_are_refused(folder: Path, out: Path) -> None:
    """One that was edited, and one that is gone although others were written after it."""
    for path in kinds.raw(folder):
        before = path.read_bytes()
        path.write_bytes(before.replace(b"fakes", b"faked") if path.suffix == ".json" else before + b" ")
        if path.read_bytes() != before:
            with pytest.raises(StorageError, match=f"{path.name} was changed after it was measured"):
                shown.report(folder.name, out)
        path.write_bytes(before)
    record = next(path for path in kinds.raw(folder) if path.name in (*kinds.RECORDS.values(), kinds.PROFILED))
    before = record.read_bytes()
    record.unlink()
    with pytest.raises(StorageError, match=f"{record.name} is missing after it was measured"):
        shown.report(folder.name, out)
    record.write_bytes(before)


class NoReader(io.StringIO):
    """Standard output into a pipe whose reader has gone."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError


def exit_code_is_kept_without_a_reader(name: str, code: int, out: Path) -> None:
    """`gate report NAME | head -3`, whose 0 would be a PASS, and `gate report NAME >&-`."""
    for stdout in (NoReader(), None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shell, "quiet", lambda: None)  # pytest's standard output is no file
            patch.setattr(sys, "stdout", stdout)
            assert shown.report(name, out) == code
