"""3 One flock per GPU: who holds it, since when, and proof that it was held throughout.

The file is keyed by GPU (or by host, for a run without one) and lies where every user of the machine looks; the kernel
drops the lock when its holder dies, however it dies, so nothing is ever stale. The watcher of a killed gate's servers
(arm/guard.py) holds it on until they are gone. What the file says about its holder is for people alone: the lock itself
is the kernel's.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import getpass
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gate.errors import LockHeldError, PreconditionError, StorageError
from gate.observe import gpu
from gate.plan import Plan
from gate.recipe import Recipe

FOLDER_VARIABLE = "GATE_LOCK_DIR"
DEFAULT_FOLDER = Path("/tmp/gate-locks")
HOST_KEY = "host"
VISIBLE = "CUDA_VISIBLE_DEVICES"
WATCHER_S = 30.0
"""How long the watcher of a killed gate may take to end its servers; it gives them 10 s, then kills."""
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Lock:
    """Locks held by this process, one per device."""

    files: tuple[tuple[Path, int], ...]
    """(path, open descriptor)."""

    def descriptors(self) -> tuple[int, ...]:
        return tuple(descriptor for _, descriptor in self.files)

    def held(self) -> bool:
        """Proof, not memory: each path still leads to the file we locked, and a lock of another would be refused.

        A file replaced behind our back would let a second gate in without either noticing, so it counts as lost.
        """
        return all(_proof(path, descriptor) for path, descriptor in self.files)


def folder() -> Path:
    """Where lock files lie: GATE_LOCK_DIR, or one folder for the whole machine; links resolved."""
    return Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER).resolve()


def keys(run: Plan | Recipe) -> tuple[str, ...]:
    """Devices that a run occupies: the UUIDs of its servers' GPUs, or the host.

    Raises:
        PreconditionError: it needs a GPU and none is there, or its arms get different ones.
    """
    recipe = run.recipe if isinstance(run, Plan) else run
    if not recipe.gpu:
        return (HOST_KEY,)
    there = gpu.gpus()
    if not there:
        raise PreconditionError(
            f"recipe {recipe.name} needs a GPU and NVML shows none",
            expected="an NVIDIA driver and one GPU",
            hint="on a machine without one: gate run --recipe tiny",
        )
    chosen = cards(run)
    if not chosen:
        raise PreconditionError(
            f"{VISIBLE}={next(iter(_settings(run).values()))!r} leaves no GPU visible to the servers",
            expected="the index or UUID of one of " + ", ".join(f"{card.index} ({card.uuid})" for card in there),
        )
    return chosen


def cards(run: Plan | Recipe) -> tuple[str, ...]:
    """UUIDs of the GPUs that both servers may use, whatever this process may; none without a GPU.

    Raises:
        PreconditionError: the arms get different ones.
    """
    recipe = run.recipe if isinstance(run, Plan) else run
    if not recipe.gpu:
        return ()
    there, settings = [(card.index, card.uuid) for card in gpu.gpus()], _settings(run)
    seen = {arm: visible(setting, there) for arm, setting in settings.items()}
    if len(set(seen.values())) > 1:
        raise PreconditionError(
            " and ".join(f"the {arm} gets {VISIBLE}={settings[arm]!r}" for arm in seen),
            expected="the same GPUs for both arms: two cards make no ratio",
            hint=f"set {VISIBLE} in the shell alone, or alike in both tables env of the recipe",
        )
    return next(iter(seen.values()))


def _settings(run: Plan | Recipe) -> dict[str, str | None]:
    """CUDA_VISIBLE_DEVICES of each server that the gate starts: of a plan as planned, of a recipe as it would be now.

    An attached server has one of its own that nobody tells; where there are no others, ours stands for it.
    """
    ours = os.environ.get(VISIBLE)
    if isinstance(run, Plan):
        planned = (run.candidate, run.oracle)
        return {one.arm: one.env.get(VISIBLE) for one in planned if one.argv is not None} or {"gate": ours}
    tables = (("candidate", run.candidate.kind, run.candidate.env), ("oracle", run.oracle.kind, run.oracle.env))
    started = {arm: env.get(VISIBLE, ours) for arm, kind, env in tables if not kind.startswith(("http://", "https://"))}
    return started or {"gate": ours}


def visible(setting: str | None, cards: list[tuple[int, str]]) -> tuple[str, ...]:
    """UUIDs that CUDA_VISIBLE_DEVICES leaves visible, sorted, so that two gates lock in the same order.

    As CUDA does, the list ends at the first entry that names no card.
    """
    if setting is None:
        return tuple(sorted(uuid for _, uuid in cards))
    found: set[str] = set()
    for entry in (part.strip() for part in setting.split(",")):
        named = [uuid for index, uuid in cards if entry == str(index) or (entry and uuid.startswith(entry))]
        if len(named) != 1:
            break
        found.add(named[0])
    return tuple(sorted(found))


@contextlib.contextmanager
def hold(run: Plan | Recipe) -> Iterator[Lock]:
    """Hold the lock of every device the run uses; released on every way out.

    Raises:
        LockHeldError: another gate has one of them; the message says who, where, since when and with which command.
        StorageError: the lock file cannot be made.
    """
    with contextlib.ExitStack() as stack:
        taken = []
        for key in keys(run):
            path = folder() / f"{key}.lock"
            descriptor = take(path)
            stack.callback(_release, descriptor)
            taken.append((path, descriptor))
        yield Lock(tuple(taken))


def take(path: Path) -> int:
    """Lock the file at path for this process and write who we are into it; returns the open descriptor."""
    descriptor = _open(path)
    deadline = time.monotonic() + WATCHER_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            seen = _read_holder(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES) and _died(seen) and time.monotonic() < deadline:
                time.sleep(POLL_S)
                continue
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise StorageError(f"cannot lock {path}: {error.strerror}", hint=f"set {FOLDER_VARIABLE}") from error
            raise LockHeldError(
                f"{path.stem} is held by {_name(seen)}", hint="wait for it to end, or stop it"
            ) from error
    with contextlib.suppress(OSError):  # a full disk: the lock is held all the same, it only does not say by whom
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (json.dumps(_holder(), indent=1) + "\n").encode(), 0)
    return descriptor


def _open(path: Path) -> int:
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.parent.chmod(0o1777)  # others must be able to lock here too; a folder we found is not ours to open
        descriptor = _open_or_create(path)
    except OSError as error:
        raise StorageError(
            f"cannot open the lock file {path}: {error.strerror}",
            hint=f"set {FOLDER_VARIABLE} to a folder that every user of this machine can write",
        ) from error
    with contextlib.suppress(PermissionError):
        os.fchmod(descriptor, 0o666)
    return descriptor


def _open_or_create(path: Path) -> int:
    """O_CREAT only where the file is missing: Linux refuses it on another user's file in a folder that all can write.
    O_NOFOLLOW: in such a folder a planted link must not choose the file that we overwrite."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        return os.open(path, flags)


def _release(descriptor: int) -> None:
    """The file stays: removing it would let two gates lock two files of one name."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)


def _proof(path: Path, descriptor: int) -> bool:
    try:
        ours, there = os.fstat(descriptor), path.stat()
    except OSError:
        return False
    if (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino):
        return False
    try:
        second = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(second)
    return False


def _holder() -> dict[str, str | int]:
    return {
        "user": _user(),
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have a number and no name
        return f"uid {os.getuid()}"


def _read_holder(descriptor: int) -> dict[str, Any]:
    """What the lock file says; empty where its holder has not written yet, or something else did."""
    try:
        seen = json.loads(os.pread(descriptor, 65536, 0))
    except ValueError:
        return {}
    return seen if isinstance(seen, dict) else {}


def _name(seen: dict[str, Any]) -> str:
    """One line about the holder."""
    try:
        return f"{seen['user']} (pid {seen['pid']} on {seen['host']}) since {seen['since']}: {seen['command']}"
    except KeyError:
        return "another process, which left no name"


def _died(seen: dict[str, Any]) -> bool:
    """Whether the gate that took the lock was on this host and is gone: then its watcher is about to let go."""
    if seen.get("host") != socket.gethostname() or not isinstance(seen.get("pid"), int):
        return False
    try:
        return bool(psutil.Process(seen["pid"]).status() == psutil.STATUS_ZOMBIE)
    except (psutil.NoSuchProcess, ValueError):
        return True
    except psutil.Error:
        return False
