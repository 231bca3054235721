"""4 The page cache's share of a checkpoint: dropped and proven gone, or read in and proven there; no root needed.

A start that reads 20 GB from the page cache and one that reads them from disk are two different figures, so every start
is labelled. Proof is mincore(2), which asks the kernel page by page. Dropping is posix_fadvise(DONTNEED);
/proc/sys/vm/drop_caches was rejected: it needs root, and empties the caches of everything else on the machine.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from gate.observe.rows import CacheState

WINDOW_BYTES = 2**30
"""Mapped at once: mincore answers with one byte a page."""
PATIENCE_S, RETRY_S = 2.0, 0.05
"""DONTNEED skips pages that are dirty, locked or mapped at that moment. Three tries in a row once left 78 of a file's
pages behind a server that had just ended."""
READ_BYTES = 2**24
CACHES_OF_THEIR_OWN = frozenset({"zfs", "tmpfs", "ramfs"})
"""Files there live in another cache, or are memory: an empty page cache proves nothing about them."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Residency:
    """What of some files is in the page cache, in whole pages."""

    files: int
    size_bytes: int
    resident_bytes: int
    kept_elsewhere: str | None = None
    """A file system with a cache of its own, where there is one."""

    @property
    def state(self) -> CacheState:
        """cold: not one page; warm: all of them; partly: anything between, and whatever cannot be proven."""
        if self.kept_elsewhere is not None:
            return "partly"
        if self.resident_bytes == 0:
            return "cold"
        return "warm" if self.resident_bytes >= self.size_bytes else "partly"


def files_of(*folders: Path) -> tuple[Path, ...]:
    """Regular, non-empty files below the folders, each once by inode: a hub cache links its snapshots to blobs."""
    found: dict[tuple[int, int], Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and (about := path.stat()).st_size:
                found.setdefault((about.st_dev, about.st_ino), path.resolve())
    return tuple(found.values())


def residency(files: Iterable[Path]) -> Residency:
    """
    Raises:
        OSError: a file cannot be opened or mapped.
    """
    known = tuple(files)
    sizes = [_resident(path) for path in known]
    elsewhere = next((kind for path in known if (kind := filesystem(path)) in CACHES_OF_THEIR_OWN), None)
    return Residency(len(known), sum(s for s, _ in sizes), sum(r for _, r in sizes), elsewhere)


def drop(files: Iterable[Path]) -> Residency:
    """Ask the kernel to forget the files, until mincore sees no page of them or PATIENCE_S are over; what is left then.

    Pages that a running process has mapped stay; so do those of a file this user may not ask about, which the kernel
    reports as resident. Neither is cold, and the result says so.
    """
    known, deadline = tuple(files), time.monotonic() + PATIENCE_S
    while True:
        for path in known:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
        left = residency(known)
        if left.resident_bytes == 0 or time.monotonic() >= deadline:
            return left
        time.sleep(RETRY_S)


def read_in(files: Iterable[Path]) -> Residency:
    """Read every file once; what of it stayed, which is less than all where memory is short."""
    known, buffer = tuple(files), bytearray(READ_BYTES)
    for path in known:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return residency(known)


def filesystem(path: Path) -> str:
    """ext4, overlay …: the type of the mount that holds the path; empty where the system does not tell."""
    mounts = [m for m in psutil.disk_partitions(all=True) if path.is_relative_to(m.mountpoint)]
    return max(mounts, key=lambda m: len(m.mountpoint)).fstype if mounts else ""


def _resident(path: Path) -> tuple[int, int]:
    """(size, resident) of one file, both in bytes of whole pages."""
    size, resident = path.stat().st_size, 0
    with path.open("rb") as file:
        for offset in range(0, size, WINDOW_BYTES):
            length = min(WINDOW_BYTES, size - offset)
            # Unmapped when nothing looks at it any more. Closed by name it would refuse while an array still does, as
            # it does for as long as a Ctrl-C that came in between is on its way out: an internal error in its place.
            resident += _pages(mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=offset), length)
    pages = -(-size // mmap.PAGESIZE)
    return pages * mmap.PAGESIZE, resident * mmap.PAGESIZE


def _pages(window: mmap.mmap, length: int) -> int:
    """Resident pages of a mapping. Mapping alone reads nothing in."""
    mapped = np.frombuffer(window, np.uint8)
    told = np.zeros(-(-length // mmap.PAGESIZE), np.uint8)
    failed = _libc.mincore(
        ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(length), ctypes.c_void_p(told.ctypes.data)
    )
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int((told & 1).sum())
