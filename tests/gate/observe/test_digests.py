"""Digests of an unfinished run: wherever kills fall between announcement and file, what is there was announced."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gate.observe import digests

NAME = "run.json"


def problem(folder: Path) -> digests.Problem | None:
    found = digests.of(folder, [folder / NAME]) if (folder / NAME).is_file() else {}
    return digests.broken(folder, found, resumed=True)


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.booleans()), max_size=12))
def test_any_number_of_kills_leaves_a_file_that_was_announced(writes: list[tuple[bytes, bool]]) -> None:
    """Each write is announced; some are cut off before the file is there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for data, lands in writes:
            digests.note(folder, NAME, data)
            if lands:
                (folder / NAME).write_bytes(data)
            assert problem(folder) is None


def test_two_kills_at_the_same_write_are_no_change(tmp_path: Path) -> None:
    digests.note(tmp_path, NAME, b"old")
    (tmp_path / NAME).write_bytes(b"old")
    for _ in range(3):
        digests.note(tmp_path, NAME, b"new")
        assert problem(tmp_path) is None


def test_a_changed_file_is_not_announced_as_it_is(tmp_path: Path) -> None:
    for data in (b"old", b"new"):
        digests.note(tmp_path, NAME, data)
    (tmp_path / NAME).write_bytes(b"edited")
    digests.note(tmp_path, NAME, b"next")
    assert problem(tmp_path) == digests.Problem(NAME, "was changed")
