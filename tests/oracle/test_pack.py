"""Packing for a machine without a network: the whole lock as wheels, which `install --from` then takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gate.errors import OracleError, UsageError
from oracle.install import install
from oracle.pack import pack
from oracle.pins import Pin

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def index(tiny_pin: Pin, tmp_path: Path, wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the indexes."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, version in tiny_pin.lock.items():
        wheel(folder, name, version)
    monkeypatch.setattr("oracle.pack.load", lambda _platform: tiny_pin)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", folder.as_uri())  # pip splits the variable at spaces
    return folder


def test_what_was_packed_installs_without_the_index(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    pack("cpu", tmp_path / "pack", python=HERE, say=said.append)
    assert sorted(path.name for path in (tmp_path / "pack").iterdir()) == sorted(p.name for p in index.iterdir())
    assert "downloading 3 wheels" in said[0]
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert install("cpu", source=tmp_path / "pack", root=tmp_path, say=str).source == "wheels"


def test_a_wheel_that_is_not_to_be_had_is_named(index: Path, tmp_path: Path) -> None:
    next(index.glob("helper-*")).unlink()
    with pytest.raises(OracleError, match=r"packing the cpu oracle: ERROR: .*helper==3"):
        pack("cpu", tmp_path / "pack", python=HERE, say=str)


@pytest.mark.parametrize(
    ("python", "message"), [("3.10", "expected at least 3.11 and below 3.14"), ("three", "such as 3.12")]
)
def test_a_python_without_a_pin_is_refused(python: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        pack("cpu", tmp_path, python=python, say=str)
