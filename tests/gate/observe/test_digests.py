"""Digests of an unfinished run: wherever kills fall between announcement and file, what is there was announced."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
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


WRITES = ("starts.parquet", "identities.json", "legs/0/requests.parquet", "legs/0/legs.parquet", "starts.parquet")
"""Of one process, behind run.json."""


@given(st.lists(st.tuples(st.integers(0, len(WRITES)), st.booleans()), min_size=1, max_size=4))
def test_no_kill_is_taken_for_a_file_that_was_lost(processes: list[tuple[int, bool]]) -> None:
    """Each process goes a part of the way; of some the last write was announced and never came."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "legs" / "0").mkdir(parents=True)
        for number, (count, lands) in enumerate(processes):
            todo = (NAME, *WRITES[:count])
            for place, one in enumerate(todo):
                data = f"{number} {place}".encode()
                digests.note(folder, one, data)
                if lands or place < len(todo) - 1:
                    (folder / one).write_bytes(data)
        found = digests.of(folder, [path for path in folder.rglob("*") if path.suffix in (".json", ".parquet")])
        assert digests.broken(folder, found, resumed=True) is None


@pytest.mark.parametrize("lost", [NAME, *WRITES[:3]])
def test_a_file_that_others_were_written_after_is_missed(tmp_path: Path, lost: str) -> None:
    for one in (NAME, *WRITES):
        digests.note(tmp_path, one, b"x")
    found = dict.fromkeys((NAME, *WRITES), digests.hashlib.sha256(b"x").hexdigest())
    assert digests.broken(tmp_path, found, resumed=True) is None
    del found[lost]
    assert digests.broken(tmp_path, found, resumed=True) == digests.Problem(lost, "is missing")


def test_of_one_that_is_not_resumed_only_the_last_may_be_missing(tmp_path: Path) -> None:
    for one in ("sweep-plan.json", "requests.parquet"):
        digests.note(tmp_path, one, b"x")
    found = {"sweep-plan.json": digests.hashlib.sha256(b"x").hexdigest()}
    assert digests.broken(tmp_path, found, resumed=False) is None
    digests.note(tmp_path, "requests.parquet", b"x")
    assert digests.broken(tmp_path, found, resumed=False) == digests.Problem("requests.parquet", "is missing")
