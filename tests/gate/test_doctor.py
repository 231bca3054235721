"""The doctor: a row for everything, a remedy for whatever is not as it should be, and an exit code."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gate import doctor, lock, recipe
from gate.doctor import Row, examine
from gate.errors import OracleError
from gate.observe import gpu


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without GPUs and with nothing installed, whatever this one has."""
    monkeypatch.setenv(lock.FOLDER_VARIABLE, str(tmp_path / "locks"))
    monkeypatch.setattr(gpu, "gpus", tuple)
    monkeypatch.setattr(gpu, "sample", dict)
    monkeypatch.setattr(recipe, "ROOT", tmp_path)


def one(section: Callable[[], Iterator[Row]], what: str) -> Row:
    return next(row for row in section() if row.what == what)


def test_whatever_is_missing_or_limited_says_what_to_do() -> None:
    rows = doctor.rows()
    assert [row.what for row in rows if row.state != "yes" and not row.todo] == []
    assert {"python", "cores", "memory", "disk", "gpu", "nvcc", "lock folder", "oracle cpu", "recipe tiny"} <= {
        row.what for row in rows
    }


def test_the_table_has_every_row_and_a_good_machine_exits_0(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (Row("python", "yes", "3.11.7", needed=True), Row("gpu", "no", "none", "buy one"))
    monkeypatch.setattr(doctor, "rows", lambda: rows)
    said: list[str] = []
    assert examine(said.append) == 0
    assert "buy one" in said[0]
    assert len([line for line in said[0].splitlines() if line.startswith(("python", "gpu"))]) == 2


def test_the_table_fits_80_columns_and_pipes_without_trailing_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (Row("recipe qwen3.6-35b-a3b-nvfp4", "limited", "word " * 40, "do [this] " * 20), Row("gpu", "yes", "a"))
    monkeypatch.setattr(doctor, "rows", lambda: rows)
    said: list[str] = []
    examine(said.append)
    assert "[this]" in said[0]
    for line in said[0].splitlines():
        assert len(line) <= 80
        assert line == line.rstrip()


def test_a_local_checkpoint_is_held_to_its_digest(
    tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.checkpoint, "ROOT", tmp_path)
    monkeypatch.setattr(recipe, "names", lambda: ("own",))
    table = {"path": "own", "digest": "0" * 64, "make": "make checkpoints"}
    made = recipe.Recipe.model_validate({"schema_version": 1, "name": "own", "gpu": False, "checkpoint": table})
    monkeypatch.setattr(recipe, "load", lambda _name: made)
    shutil.copytree(tiny_checkpoint, tmp_path / "own")
    row = one(doctor._checkpoints, "recipe own")
    assert row.state == "no"
    assert row.todo.endswith(f"remove {tmp_path / 'own'}, then: make checkpoints")


def test_what_every_run_needs_exits_69(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "rows", lambda: (Row("lock folder", "no", "read-only", "set it", needed=True),))
    assert examine(lambda _: None) == 69


def test_a_held_lock_names_its_holder(tmp_path: Path) -> None:
    lock.take(tmp_path / "locks" / "host.lock")
    row = one(doctor._lock, "lock of host")
    assert row.state == "limited"
    assert "pid" in row.found


def test_looking_at_the_locks_leaves_them_free(tmp_path: Path) -> None:
    assert [row.state for row in doctor._lock()] == ["yes"]
    lock.take(tmp_path / "locks" / "host.lock")


def test_a_lock_folder_that_cannot_be_written_stops_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(lock.FOLDER_VARIABLE, str(tmp_path / "file" / "locks"))
    row = one(doctor._lock, "lock folder")
    assert (row.state, row.needed) == ("no", True)
    assert lock.FOLDER_VARIABLE in row.todo


def test_an_oracle_that_differs_gives_one_line_of_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def differs(_platform: str) -> None:
        raise OracleError("is not the pinned", hint="run: gate oracle install cpu --force\n  what  pinned  found")

    monkeypatch.setattr("oracle.verify.verify_installed", differs)
    row = one(doctor._oracle, "oracle cpu")
    assert (row.state, row.todo) == ("no", "run: gate oracle install cpu --force")


def test_a_gpu_recipe_without_a_gpu_is_no_and_a_missing_checkpoint_says_how_to_make_it(tmp_path: Path) -> None:
    assert not (tmp_path / "checkpoints").exists()
    assert one(doctor._checkpoints, "recipe qwen3.6-27b-nvfp4").found.startswith("needs a GPU; ")
    row = one(doctor._checkpoints, "recipe tiny")
    assert (row.state, row.todo) == ("no", "make checkpoints")


def test_cards_are_listed_with_what_holds_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "gpus", lambda: (gpu.Gpu(0, "NVIDIA H200", "GPU-a", 150 * 2**30),))
    monkeypatch.setattr(gpu, "driver", lambda: "580.1")
    monkeypatch.setattr(gpu, "sample", lambda: {"gpu0.throttle_mask": 0x40})
    assert "150.00 GiB" in one(doctor._gpu, "gpu 0").found
    assert one(doctor._gpu, "gpu 0 clocks").found == "held back: hardware thermal slowdown"
    monkeypatch.setattr(gpu, "sample", lambda: {"gpu0.throttle_mask": None})
    assert "nvidia-smi -lgc" in one(doctor._gpu, "gpu 0 clocks").todo


@pytest.mark.parametrize(("free", "state"), [(10e9, "yes"), (9.9e9, "limited")])
def test_a_small_disk_is_limited(free: float, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert one(doctor._disk, "disk").state == state
