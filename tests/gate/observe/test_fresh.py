"""The folder of a new run: one for each run, whatever else starts in that second."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from gate.errors import StorageError
from gate.observe import fresh

FIRST = datetime(2026, 11, 30, 12, 0, 0, 900_000, tzinfo=UTC)


def test_the_second_names_it(tmp_path: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    started, folder = fresh.folder(tmp_path / "results" / "box", "tiny-1234")
    assert before <= started <= datetime.now(UTC)
    assert folder == tmp_path / "results" / "box" / f"{started:%Y%m%dT%H%M%SZ}-tiny-1234"
    assert folder.is_dir()


def test_a_name_that_is_taken_is_left_to_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([FIRST, FIRST, FIRST + timedelta(seconds=1)])
    monkeypatch.setattr(fresh, "datetime", SimpleNamespace(now=lambda _: next(clock)))
    taken, later = fresh.folder(tmp_path, "tiny"), fresh.folder(tmp_path, "tiny")
    assert (taken[0], taken[1].name) == (FIRST, "20261130T120000Z-tiny")
    assert (later[0], later[1].name) == (FIRST + timedelta(seconds=1), "20261130T120001Z-tiny")


def test_gates_of_one_moment_get_one_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "WAIT_S", 0.0)
    ticks = iter(FIRST + timedelta(seconds=0.1 * tick) for tick in range(10_000))
    monkeypatch.setattr(fresh, "datetime", SimpleNamespace(now=lambda _: next(ticks)))
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: fresh.folder(tmp_path, "tiny")[1], range(8)))
    assert len(set(made)) == 8


@pytest.mark.parametrize("blocked", ["results", "results/box"])
def test_a_file_in_the_way_is_one_line(tmp_path: Path, blocked: str) -> None:
    (tmp_path / blocked).parent.mkdir(exist_ok=True)
    (tmp_path / blocked).touch()
    with pytest.raises(StorageError, match=r"cannot write .*; free space or choose another folder with --out"):
        fresh.folder(tmp_path / "results" / "box", "tiny")
