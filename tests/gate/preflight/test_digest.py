"""The content digest: a closed form, remembered by what the file system says, and never fooled by what it can see."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gate.errors import CheckpointError
from gate.preflight import digest as module
from gate.preflight.digest import digest

TOOL = Path(__file__).resolve().parents[3] / "tools" / "expand_checkpoint.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    for name, content in {"b.safetensors": b"weights", "a.json": b"{}"}.items():
        (made / name).write_bytes(content)
        settle(made / name)
    return made


def settle(path: Path) -> None:
    old = time.time() - 100
    os.utime(path, (old, old))


def tick(path: Path, probe: Path) -> None:
    """Until a change is stamped later than the last one of `path`: the clock of older kernels' files stands for
    milliseconds."""
    probe.touch()
    while probe.stat().st_ctime_ns <= path.stat().st_ctime_ns:
        probe.touch()


def test_it_is_the_sha256_of_the_sorted_list_of_files(folder: Path, tmp_path: Path) -> None:
    lines = "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n"
        for name, content in [("a.json", b"{}"), ("b.safetensors", b"weights")]
    )
    assert digest(folder, tmp_path / "cache") == hashlib.sha256(lines.encode()).hexdigest()


def test_the_tool_that_makes_the_oracles_copy_computes_the_same(folder: Path, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("expand_checkpoint", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert digest(folder, tmp_path / "cache") == tool.digest(folder)


def test_an_unchanged_file_is_not_read_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = digest(folder, tmp_path / "cache")
    read: list[str] = []
    whole = module._sha256
    monkeypatch.setattr(module, "_sha256", lambda path, cut: read.append(path.name) or whole(path, cut))
    assert digest(folder, tmp_path / "cache") == first
    assert read == []
    (folder / "a.json").write_bytes(b"[]")
    assert digest(folder, tmp_path / "cache") != first
    assert read == ["a.json"]


def test_an_interrupt_does_not_wait_for_the_end_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of a checkpoint's shards may have a minute to go."""
    many = 5000
    (tmp_path / "weights").write_bytes(bytes(many))
    real, parts = hashlib.sha256, []

    class Slow:
        def __init__(self, data: bytes = b"") -> None:
            self.found = real(data)

        def update(self, part: memoryview) -> None:
            time.sleep(0.005)
            parts.append(len(part))
            if len(parts) == 3:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        def hexdigest(self) -> str:
            return self.found.hexdigest()

    monkeypatch.setattr(module, "CHUNK_BYTES", 1)
    monkeypatch.setattr(module.hashlib, "sha256", Slow)
    with pytest.raises(KeyboardInterrupt):
        digest(tmp_path, tmp_path / "memory")
    assert len(parts) < many


def test_a_change_that_keeps_size_and_modification_time_is_seen(folder: Path, tmp_path: Path) -> None:
    first = digest(folder, tmp_path / "cache")
    path = folder / "b.safetensors"
    before = path.stat()
    tick(path, tmp_path / "probe")
    path.write_bytes(b"WEIGHTS")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert digest(folder, tmp_path / "cache") != first


def test_a_file_just_written_is_not_remembered(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLED_S", 50.0)
    (folder / "c.json").write_bytes(b"new")
    digest(folder, tmp_path / "cache")
    read: list[str] = []
    whole = module._sha256
    monkeypatch.setattr(module, "_sha256", lambda path, cut: read.append(path.name) or whole(path, cut))
    digest(folder, tmp_path / "cache")
    assert read == ["c.json"]


@pytest.mark.parametrize("content", ["not json", "[]", '{"a.json": 3}', '{"a.json": [1, 2, 3, 4, "no"]}'])
def test_a_spoilt_memory_costs_time_and_nothing_else(content: str, folder: Path, tmp_path: Path) -> None:
    first = digest(folder, tmp_path / "cache")
    for memory in (tmp_path / "cache").iterdir():
        memory.write_text(content)
    assert digest(folder, tmp_path / "cache") == first


def test_a_memory_that_cannot_be_written_costs_time_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert digest(folder, tmp_path / "file" / "cache") == digest(folder, tmp_path / "cache")


def test_a_hub_blob_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    sha = hashlib.sha256(b"weights").hexdigest()
    (blobs / sha).write_bytes(b"weights")
    (snapshot / "m.safetensors").symlink_to(blobs / sha)
    assert digest(snapshot, tmp_path / "cache")
    (blobs / sha).write_bytes(b"weightz")
    with pytest.raises(CheckpointError, match=f"expected {sha[:12]}…, as published; remove "):
        digest(snapshot, tmp_path / "cache")
