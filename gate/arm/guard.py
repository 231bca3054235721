"""4 The watcher that ends servers when the gate itself was killed: `python -m gate.arm.guard`, one per gate.

It reads "+SESSION" and "-SESSION" lines from its standard input; when that closes, whatever session is still listed is
ended. PR_SET_PDEATHSIG was rejected for this: it reaches only the direct child (vLLM's EngineCore outlives the API
server and keeps the memory), and it is tied to the thread that forked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_S = 10.0
"""Between SIGTERM and SIGKILL: a server releases a GPU more cleanly than the kernel does."""


def members(session: int) -> list[int]:
    """Processes of a session, zombies left out."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # gone between listing and reading
        state, sid = fields[0], int(fields[3])
        if sid == session and state not in "ZX":
            found.append(int(folder.name))
    return found


def signal_all(pids: list[int], signum: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


class Guard:
    """The gate's end of the watcher."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, session: int) -> None:
        if self._process is None or self._process.poll() is not None:
            argv = [sys.executable, "-P", "-m", "gate.arm.guard"]
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True)
        self._tell(f"+{session}\n")

    def release(self, session: int) -> None:
        self._tell(f"-{session}\n")

    def close(self) -> None:
        """Ends the watcher; sessions still listed are ended by it."""
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process = None

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # the watcher was killed: the gate still stops its servers
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()


def main() -> None:
    listed: set[int] = set()
    for line in sys.stdin:
        (listed.add if line.startswith("+") else listed.discard)(int(line[1:]))
    for session in listed:
        signal_all(members(session), signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and any(members(session) for session in listed):
        time.sleep(0.1)
    for session in listed:
        signal_all(members(session), signal.SIGKILL)


if __name__ == "__main__":
    main()
