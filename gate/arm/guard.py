"""4 The watcher that ends servers when the gate itself was killed: `python -m gate.arm.guard`, one per gate.

It reads lines from its standard input: "+MARK" before a server is started, "=MARK SESSION" when it runs, "-MARK" when
it is gone. When its input closes, whatever is still listed is ended. A server is known by its session and by a mark in
its environment, which a descendant keeps when it leaves the session and its parent dies. Either alone was rejected:
vLLM overwrites the environment of its workers with their titles, and a daemon has a session of its own.
PR_SET_PDEATHSIG was rejected too: it reaches only the direct child (vLLM's EngineCore outlives the API server and
keeps the memory), and it is tied to the thread that forked.

The watcher holds the gate's locks open until it is done, so that nobody measures beside the servers of a killed gate.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "GATE_SERVER"
"""Environment variable of a started server; its value is the server's own. The one thing the plan does not name."""
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


def marked(mark: str) -> list[int]:
    """Processes with this mark in their environment, zombies left out; only those of our own user can be read."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # a zombie's environment is empty, or cannot be read
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
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
        self.keep: tuple[int, ...] = ()
        """Descriptors of the locks that a watcher holds as long as it lives."""

    def announce(self, mark: str) -> None:
        """Before the server is started: killed in between, the gate leaves no process that nobody knows.

        The new process holds the pipe open until it has its own environment, so the watcher cannot look too early.
        A gate that ends by itself does not do so before its servers have: an interrupt can come between the end of
        the work and the first step of stopping them.
        """
        if self._process is None or self._process.poll() is not None:
            atexit.unregister(self.close)
            atexit.register(self.close)
            argv = [sys.executable, "-P", "-m", "gate.arm.guard"]
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True, pass_fds=self.keep)
        self._tell(f"+{mark}\n")

    def watch(self, mark: str, session: int) -> None:
        self._tell(f"={mark} {session}\n")

    def release(self, mark: str) -> None:
        self._tell(f"-{mark}\n")

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
    listed: dict[str, set[int]] = {}
    for line in sys.stdin:
        mark, _, session = line[1:].strip().partition(" ")
        if line.startswith("-"):
            listed.pop(mark, None)
        else:
            listed.setdefault(mark, set()).update({int(session)} if session else ())
    end(listed, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and end(listed, 0):
        time.sleep(0.1)
    end(listed, signal.SIGKILL)


def end(listed: dict[str, set[int]], signum: int) -> bool:
    """Signal what is left of every listed server; whether there was anything. Signal 0 only looks."""
    left = {
        pid for mark, sessions in listed.items() for pid in (*marked(mark), *(p for s in sessions for p in members(s)))
    }
    signal_all(sorted(left), signum)
    return bool(left)


if __name__ == "__main__":
    main()
