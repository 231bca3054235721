"""The shim's wheel: a valid, reproducible wheel named vllm; and the shim's two modules, against stand-ins."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import sys
import types
import zipfile
from pathlib import Path

import pytest

from oracle import shimwheel
from oracle.pins import SHIM_FOLDER, load


def test_it_names_the_cpu_build_vllm_and_registers_the_plugin(tmp_path: Path) -> None:
    wheel = shimwheel.build(load("cpu"), tmp_path)
    assert wheel.name == "vllm-0.32.0+cpu-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        info = "vllm-0.32.0+cpu.dist-info"
        assert "Name: vllm\nVersion: 0.32.0+cpu\n" in archive.read(f"{info}/METADATA").decode()
        assert b"[vllm.general_plugins]" in archive.read(f"{info}/entry_points.txt")
        assert archive.read("oracle_cpu_shim.pth") == b"import oracle_cpu_shim\n"


def test_its_record_lists_every_file_with_its_hash(tmp_path: Path) -> None:
    with zipfile.ZipFile(shimwheel.build(load("cpu"), tmp_path)) as archive:
        record = next(name for name in archive.namelist() if name.endswith("RECORD"))
        rows = dict(line.rsplit(",", 2)[0:2] for line in archive.read(record).decode().splitlines())
        assert set(rows) == set(archive.namelist())
        for name, value in rows.items():
            if name != record:
                digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
                assert value == f"sha256={digest}"


def test_two_builds_are_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    first, second = (shimwheel.build(load("cpu"), folder) for folder in (tmp_path, tmp_path / "again"))
    assert first.read_bytes() == second.read_bytes()


def _module(name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, SHIM_FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_schemas_are_declared_once_and_only_for_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    declared: list[str] = []
    torch = types.ModuleType("torch")
    torch.library = types.SimpleNamespace(define=lambda name, _schema: declared.append(name))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    _module("oracle_cpu_shim")
    for name in ("a_module_that_is_not_there", "torchvision", "torchvision"):
        assert importlib.util.find_spec(name) is None
    assert declared == ["torchvision::nms", "torchvision::qnms"]


@pytest.mark.parametrize(("before", "after"), [({}, ["emulation"]), ({"cpu": ["own"]}, ["own"])])
def test_the_plugin_adds_the_emulation_only_where_there_is_nothing(
    before: dict[str, list[str]], after: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = types.ModuleType("vllm.model_executor.kernels.linear")
    linear._POSSIBLE_NVFP4_KERNELS = before  # type: ignore[attr-defined]
    linear.EmulationNvFp4LinearKernel = "emulation"  # type: ignore[attr-defined]
    interface = types.ModuleType("vllm.platforms.interface")
    interface.PlatformEnum = types.SimpleNamespace(CPU="cpu")  # type: ignore[attr-defined]
    kernels = types.ModuleType("vllm.model_executor.kernels")
    kernels.linear = linear  # type: ignore[attr-defined]
    for name, module in {
        "vllm": types.ModuleType("vllm"),
        "vllm.model_executor": types.ModuleType("vllm.model_executor"),
        "vllm.model_executor.kernels": kernels,
        "vllm.platforms": types.ModuleType("vllm.platforms"),
        "vllm.platforms.interface": interface,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    _module("oracle_cpu_nvfp4").register()
    assert before["cpu"] == after
