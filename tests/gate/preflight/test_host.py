"""The host preconditions: memory, disk, ports, a writable results folder, quiet cores."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from gate.arm.ports import port_is_free
from gate.errors import PreconditionError, StorageError
from gate.plan import Plan
from gate.preflight import disk, host_idle, memory, ports, results

Make = Callable[..., Plan]
GIB = 2**30


def available(bytes_: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=bytes_))


def test_both_servers_and_their_weights_must_fit(
    plan: Make, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    need = 4 * GIB + 2 * weights
    available(need, monkeypatch)
    assert memory.check(plan(), tmp_path) == ()
    available(need - 1, monkeypatch)
    with pytest.raises(PreconditionError, match=r"4\.00 GiB of memory available; expected .* set residency"):
        memory.check(plan(), tmp_path)
    assert memory.check(plan({"protocol": {"residency": "alternate"}}), tmp_path) == ()


def test_an_attached_url_costs_this_host_nothing(plan: Make) -> None:
    both = plan(candidate={"kind": "url", "argv": None}, oracle={"kind": "url", "argv": None})
    assert memory.host_need_bytes(both) == 0


def test_a_disk_below_the_need_is_refused(plan: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need = 500_000_000 + 1000 * 8 * 64
    assert disk.need_bytes(plan()) == need
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: SimpleNamespace(free=need))
    assert disk.check(plan(), tmp_path / "not" / "yet" / "made") == ()
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: SimpleNamespace(free=need - 1))
    with pytest.raises(StorageError, match=r"0\.5 GB free in .*; expected 0\.5 GB"):
        disk.check(plan(), tmp_path)


@pytest.fixture
def listener() -> Callable[[], socket.socket]:
    def listen() -> socket.socket:
        server = socket.socket()
        server.bind(("127.0.0.1", 0))
        server.listen()
        return server

    return listen


def test_a_taken_port_names_who_has_it(plan: Make, tmp_path: Path, listener: Callable[[], socket.socket]) -> None:
    with listener() as server:
        port = server.getsockname()[1]
        taken = plan(oracle={"url": f"http://127.0.0.1:{port}"}, candidate={"kind": "url", "argv": None})
        with pytest.raises(PreconditionError, match=rf"port {port} of the oracle is taken by pid {os.getpid()} \("):
            ports.check(taken, tmp_path)
        attached = plan(
            candidate={"kind": "url", "argv": None, "url": f"http://127.0.0.1:{port}"},
            oracle={"kind": "url", "argv": None},
        )
        assert ports.check(attached, tmp_path) == ()
    assert port_is_free("127.0.0.1", port)


def test_a_results_folder_is_made_and_left_empty(plan: Make, tmp_path: Path) -> None:
    assert results.check(plan(), tmp_path / "a" / "b") == ()
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_results_folder_that_takes_no_files_is_refused(plan: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write results in .*file/results: Not a directory; .*--out"):
        results.check(plan(), tmp_path / "file" / "results")


@pytest.mark.parametrize(("share", "codes"), [(0.0, []), (0.25, []), (0.2501, ["host-busy"]), (1.0, ["host-busy"])])
def test_busy_cores_are_a_finding_above_the_limit(share: float, codes: list[str]) -> None:
    assert [finding.code for finding in host_idle.judge(share)] == codes
