"""`checkpoint`: a whole small folder of two shards; `plan`: a plan over it; `cards`: GPUs made of plain values."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gate import recipe as recipes
from gate.observe import gpu
from gate.observe.rows import ARMS
from gate.plan import ArmPlan, Plan, PlannedLeg
from gate.preflight import checkpoint as checkpoints
from gate.recipe import Recipe


def shard(tensors: dict[str, bytes]) -> bytes:
    """A safetensors file of one-dimensional U8 tensors."""
    header, data = {}, b""
    for name, content in tensors.items():
        header[name] = {
            "dtype": "U8",
            "shape": [len(content)],
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.fixture
def make_shard() -> Callable[[dict[str, bytes]], bytes]:
    return shard


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "checkpoints" / "small"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"vocab_size": 10}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "a.safetensors").write_bytes(shard({"x": b"12", "y": b"345"}))
    (folder / "b.safetensors").write_bytes(shard({"z": b"6789"}))
    weight_map = {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    monkeypatch.setattr(recipes, "ROOT", tmp_path)
    monkeypatch.setattr(checkpoints, "ROOT", tmp_path)
    return folder


@pytest.fixture
def recipe() -> Callable[..., Recipe]:
    def make(**over: Any) -> Recipe:
        tables: dict[str, Any] = {
            "schema_version": 1,
            "name": "small",
            "gpu": False,
            "max_model_len": 64,
            "checkpoint": {"path": "checkpoints/small", "make": "make checkpoints"},
            "workload": {"prompt_tokens": 16, "output_tokens": 8},
            "oracle": {"platform": "cpu"},
        }
        return Recipe.model_validate(tables | over)

    return make


@pytest.fixture
def plan(recipe: Callable[..., Recipe], checkpoint: Path) -> Callable[..., Plan]:
    def make(over: dict[str, Any] | None = None, digest: str | None = None, **arms: dict[str, Any]) -> Plan:
        made = recipe(**(over or {}))
        seats = {}
        for port, arm in enumerate(ARMS, 1):
            fields: dict[str, Any] = {
                "arm": arm,
                "kind": "engine" if arm == "candidate" else "vllm",
                "argv": ("serve",),
                "env": {},
                "url": f"http://127.0.0.1:{port}",
                "model": "small",
                "checkpoint": str(checkpoint.resolve()),
                "checkpoint_digest": digest,
            }
            seats[arm] = ArmPlan(**(fields | arms.get(arm, {})))
        leg = PlannedLeg(
            leg_id="000-candidate-c4-r0",
            order=0,
            arm="candidate",
            concurrency=4,
            repetition=0,
            requests=1000,
            prompts_sha256="",
            warmup_sha256="",
        )
        return Plan(plan_id="p", recipe=made, coin="candidate", seed=0, legs=(leg,), **seats)

    return make


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put GPUs in place of NVML's: dicts with uuid, processes, used, free, mask; a value may be an NVMLError."""

    def put(*wanted: dict[str, Any]) -> None:
        handles = [SimpleNamespace(**{"processes": [], "used": 0, "free": 2**40, "mask": 0} | card) for card in wanted]

        def said(handle: Any, name: str) -> Any:
            value = getattr(handle, name)
            if isinstance(value, pynvml.NVMLError):
                raise value
            return value

        @contextlib.contextmanager
        def session() -> Iterator[list[Any]]:
            yield handles

        monkeypatch.setattr(gpu, "session", session)
        monkeypatch.setattr(
            gpu, "gpus", lambda: tuple(gpu.Gpu(i, "H", handle.uuid, None) for i, handle in enumerate(handles))
        )
        memory = lambda handle: SimpleNamespace(used=said(handle, "used"), free=said(handle, "free"))  # noqa: E731
        monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: handle.uuid)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", memory)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: said(handle, "processes"))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", lambda handle: said(handle, "mask"))

    return put
