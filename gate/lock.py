"""3 One flock per GPU: who holds it, since when, and proof that it was held throughout.

The file is keyed by GPU (or by host, for a run without one) and lies where every user of the machine looks; the kernel
drops the lock when its holder dies, however it dies, so nothing is ever stale. What the file says about its holder is
for people alone: the lock itself is the kernel's.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gate.errors import LockHeldError, PreconditionError, StorageError
from gate.observe import gpu
from gate.recipe import Recipe

FOLDER_VARIABLE = "GATE_LOCK_DIR"
DEFAULT_FOLDER = Path("/tmp/gate-locks")
HOST_KEY = "host"


@dataclass(frozen=True, slots=True)
class Lock:
    """Locks held by this process, one per device."""

    files: tuple[tuple[Path, int], ...]
    """(path, open descriptor)."""

    def held(self) -> bool:
        """Proof, not memory: each path still leads to the file we locked, and a lock of another would be refused.

        A file replaced behind our back would let a second gate in without either noticing, so it counts as lost.
        """
        return all(_proof(path, descriptor) for path, descriptor in self.files)


def folder() -> Path:
    """Where lock files lie: GATE_LOCK_DIR, or one folder for the whole machine; links resolved."""
    return Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER).resolve()


def keys(recipe: Recipe) -> tuple[str, ...]:
    """Devices that a run of this recipe occupies: the UUIDs of its visible GPUs, or the host.

    Raises:
        PreconditionError: the recipe needs a GPU and none is there.
    """
    if not recipe.gpu:
        return (HOST_KEY,)
    cards = gpu.gpus()
    if not cards:
        raise PreconditionError(
            f"recipe {recipe.name} needs a GPU and NVML shows none",
            expected="an NVIDIA driver and one GPU",
            hint="on a machine without one: gate run --recipe tiny",
        )
    chosen = visible(os.environ.get("CUDA_VISIBLE_DEVICES"), [(card.index, card.uuid) for card in cards])
    if not chosen:
        raise PreconditionError(
            f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r} leaves no GPU visible",
            expected="the index or UUID of one of " + ", ".join(f"{card.index} ({card.uuid})" for card in cards),
        )
    return chosen


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
def hold(recipe: Recipe) -> Iterator[Lock]:
    """Hold the lock of every device the recipe uses; released on every way out.

    Raises:
        LockHeldError: another gate has one of them; the message says who, where, since when and with which command.
        StorageError: the lock file cannot be made.
    """
    with contextlib.ExitStack() as stack:
        taken = []
        for key in keys(recipe):
            path = folder() / f"{key}.lock"
            descriptor = take(path)
            stack.callback(_release, descriptor)
            taken.append((path, descriptor))
        yield Lock(tuple(taken))


def take(path: Path) -> int:
    """Lock the file at path for this process and write who we are into it; returns the open descriptor."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _read_holder(descriptor)
        os.close(descriptor)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise StorageError(f"cannot lock {path}: {error.strerror}", hint=f"set {FOLDER_VARIABLE}") from error
        raise LockHeldError(f"{path.stem} is held by {holder}", hint="wait for it to end, or stop it") from error
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


def _read_holder(descriptor: int) -> str:
    """One line about the holder; the lock may be held by one that has not written yet."""
    try:
        seen = json.loads(os.pread(descriptor, 65536, 0))
        return f"{seen['user']} (pid {seen['pid']} on {seen['host']}) since {seen['since']}: {seen['command']}"
    except (ValueError, KeyError, TypeError):
        return "another process, which left no name"
