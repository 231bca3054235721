"""What holds for the report of a sweep, of start-ups and of a profile alike."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from gate import runs, shell, shown
from gate.errors import StorageError


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
    (folder / "report.sha256").unlink()
    for content, message in ((b"{", "Invalid JSON"), (b"{}", "Field required"), (b"[]", "should be an object")):
        path.write_bytes(content)
        with pytest.raises(StorageError, match=message) as refused:
            shown.show(folder.name, out, every=False)
        assert f"gate report {folder.name} writes it anew" in str(refused.value)


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
