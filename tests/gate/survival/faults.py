"""Faults at the n-th operation that leaves a trace: a kill, a power cut, a full disk. For a process of its own.

An audit hook counts what Python asks of the system, so that the code under test has no seam for this.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

Kind = Literal["count", "kill", "full"]
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.truncate")
MOMENTS = ("socket.connect", "subprocess.Popen")
"""Not writes, but moments in which a gate can be killed."""


class Fault:
    """Counts operations below `folder`, and others that `MOMENTS` names; from the n-th on it strikes.

    kill: SIGKILL before the operation; where that is an fsync, the file first loses what a power cut may take of it.
    full: every write from the n-th on fails with ENOSPC.
    """

    def __init__(self, kind: Kind, at: int, folder: Path, seed: int = 0) -> None:
        self.kind, self.at, self.folder = kind, at, str(folder)
        self.seen: list[str] = []
        self._random = random.Random(f"{at}/{seed}")
        self._fsync = os.fsync

    def install(self) -> None:
        """For the rest of this process's life: an audit hook cannot be removed."""
        sys.addaudithook(self._audit)
        os.fsync = self._counted_fsync

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, (str, os.PathLike)) and flags & WRITING and self._ours(os.fspath(path)):
                self._strike(f"open {os.fspath(path)}", None)
        elif event in CHANGES and isinstance(arguments[0], (str, os.PathLike)):
            if self._ours(os.fspath(arguments[0])):
                self._strike(f"{event} {os.fspath(arguments[0])}", None)
        elif event in MOMENTS and self.kind != "full":
            self._strike(event, None)

    def _ours(self, path: str) -> bool:
        return path.startswith(self.folder)

    def _counted_fsync(self, descriptor: int) -> None:
        self._strike(f"fsync {path_of(descriptor)}", descriptor)
        self._fsync(descriptor)

    def _strike(self, what: str, descriptor: int | None) -> None:
        self.seen.append(what)
        if self.kind == "count" or len(self.seen) < self.at:
            return
        if self.kind == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), what.partition(" ")[2])
        if descriptor is not None and stat.S_ISREG(os.fstat(descriptor).st_mode):
            self._tear(descriptor)
        os.kill(os.getpid(), signal.SIGKILL)

    def _tear(self, descriptor: int) -> None:
        """Of the last line of a list that grows, or of a whole new file, some beginning is left."""
        path = path_of(descriptor)
        data = path.read_bytes()
        kept = data.rstrip(b"\n").rfind(b"\n") + 1 if path.suffix == ".sha256" else 0
        os.truncate(path, self._random.randint(kept, len(data)))


def path_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def forked(body: Callable[[], int]) -> int:
    """Run body in a fork and return its wait status; the parent goes on with nothing changed."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = body()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]
