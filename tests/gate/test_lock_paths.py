"""One file is one lock, whatever path leads to it; a lock whose file went elsewhere is noticed as lost."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gate import lock
from gate.arm.guard import MARK, Guard
from gate.errors import LockHeldError, StorageError
from tests.gate.test_lock import HOLDER, recipe


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "locks"
    made.mkdir()
    monkeypatch.setenv(lock.FOLDER_VARIABLE, str(made))
    return made


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder on another file system."""
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == Path(tempfile.gettempdir()).stat().st_dev:
        pytest.skip("this machine has no second file system for a test to write to")
    made = Path(tempfile.mkdtemp(dir=shm))
    yield made
    shutil.rmtree(made)


def refused(monkeypatch: pytest.MonkeyPatch, path: Path | str) -> None:
    monkeypatch.setenv(lock.FOLDER_VARIABLE, str(path))
    with pytest.raises(LockHeldError, match=rf"host is held by .* \(pid {os.getpid()} on .*\) since 20") as caught:
        lock.take(lock.folder() / "host.lock")
    assert caught.value.exit_code == 75


def test_a_relative_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lock.hold(recipe(on_gpu=False)):
        monkeypatch.chdir(folder.parent)
        refused(monkeypatch, "locks/../locks/.")


def test_a_hard_link(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lock.hold(recipe(on_gpu=False)):
        other = folder.parent / "other"
        other.mkdir()
        os.link(folder / "host.lock", other / "host.lock")
        refused(monkeypatch, other)


def test_a_bind_mount(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = folder.parent / "bound"
    other.mkdir()
    mounted = subprocess.run(["mount", "--bind", str(folder), str(other)], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("this user may not mount")
    try:
        with lock.hold(recipe(on_gpu=False)):
            refused(monkeypatch, other)
    finally:
        subprocess.run(["umount", str(other)], check=True)


def test_a_link_to_the_file_lets_nobody_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused and not followed: in a folder that all can write, anybody may have planted it."""
    with lock.hold(recipe(on_gpu=False)):
        other = folder.parent / "other"
        other.mkdir()
        (other / "host.lock").symlink_to(folder / "host.lock")
        monkeypatch.setenv(lock.FOLDER_VARIABLE, str(other))
        with pytest.raises(StorageError, match="cannot open the lock file"):
            lock.take(lock.folder() / "host.lock")


def test_a_path_that_leads_to_another_file_system_is_lost(folder: Path, elsewhere: Path) -> None:
    with lock.hold(recipe(on_gpu=False)) as held:
        assert held.held()
        folder.rename(folder.with_name("moved"))
        folder.symlink_to(elsewhere)
        assert not held.held()
        (elsewhere / "host.lock").touch()
        assert not held.held()


def test_on_another_file_system_it_is_a_lock_too(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lock.FOLDER_VARIABLE, str(elsewhere))
    with lock.hold(recipe(on_gpu=False)) as held:
        assert held.held()
        refused(monkeypatch, elsewhere)


def test_who_holds_it_is_told_whole(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder / "host.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        said = json.loads((folder / "host.lock").read_text())
        with pytest.raises(LockHeldError) as caught:
            lock.take(folder / "host.lock")
        for part in (said["user"], f"pid {holder.pid}", f"on {socket.gethostname()}", f"since {said['since']}"):
            assert part in str(caught.value)
        holder.kill()


def dead_holder(folder: Path) -> int:
    """A lock that a watcher holds on for a gate that is dead; the watcher's end of the file."""
    descriptor = lock.take(folder / "host.lock")
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    said = json.loads((folder / "host.lock").read_text()) | {"pid": gone.pid}
    os.pwrite(descriptor, json.dumps(said).encode().ljust(400), 0)
    return descriptor


def test_the_watcher_of_a_dead_gate_is_waited_for(folder: Path) -> None:
    descriptor = dead_holder(folder)
    guard = Guard()
    guard.keep = (descriptor,)
    guard.announce("m")
    server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={MARK: "m"})
    os.close(descriptor)  # the gate is gone; its watcher still has the lock
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock, "WATCHER_S", 0.0)
        with pytest.raises(LockHeldError):
            lock.take(folder / "host.lock")
    guard.close()
    again = lock.take(folder / "host.lock")
    assert server.wait(20) != 0  # gone before the lock was free
    os.close(again)


def test_a_watcher_that_hangs_is_not_waited_for_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "WATCHER_S", 0.2)
    descriptor = dead_holder(folder)
    with pytest.raises(LockHeldError):
        lock.take(folder / "host.lock")
    os.close(descriptor)


def test_a_living_holder_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _s: pytest.fail("waited"))
    with lock.hold(recipe(on_gpu=False)), pytest.raises(LockHeldError):
        lock.take(folder / "host.lock")


@pytest.mark.parametrize("said", ["", "not json", "[1]", '{"pid": "x"}', '{"host": 1, "pid": -1}'])
def test_a_lock_file_with_anything_in_it_is_one_line(folder: Path, said: str) -> None:
    descriptor = lock.take(folder / "host.lock")
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, said.encode(), 0)
    with pytest.raises(LockHeldError, match="held by another process, which left no name"):
        lock.take(folder / "host.lock")
    os.close(descriptor)
