"""4 A server process: a session of its own, an explicit environment, a log file, and proof that it is gone."""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

from gate.arm.guard import MARK, Guard, marked, members, signal_all
from gate.arm.ports import holder, port_is_free
from gate.errors import ArmError
from gate.interrupt import deferred
from gate.observe import control, serverlog
from gate.plan import ArmPlan

POLL_S = 0.1
START_POLL_S = 0.02
"""Between two looks at a server that starts: how exact its stamps are. A look costs 0.1 ms while the port is shut, and
some 1 ms from then on."""
STEPS: tuple[tuple[int, float], ...] = ((signal.SIGINT, 20.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0))
"""How a server is asked to go, and how long each request may take; SIGINT is what vLLM shuts its workers down on."""
PORT_FREE_S = 5.0
HEALTH_TIMEOUT_S = 2.0
LAST_LINE_CHARS = 300
MOST_LOG_BYTES = 4 * 2**20
"""Of one start: what a server says of its settings stands long before."""

GUARD = Guard()


@dataclass(slots=True)
class Stamps:
    """perf_counter_ns() of a start, each the first look that saw it."""

    spawn_ns: int
    port_open_ns: int | None = None
    ready_ns: int | None = None


class ServerProcess:
    """One started server. Made by `launch`; `stop` may be called any number of times."""

    def __init__(
        self, plan: ArmPlan, popen: subprocess.Popen[bytes], log: Path, log_start: int = 0, *, mark: str
    ) -> None:
        self.plan = plan
        self.log = log
        self.mark = mark
        self._log_start = log_start
        self._logged: dict[str, str] = {}
        self._popen = popen
        self.stamps = Stamps(time.perf_counter_ns())
        self._start_id = f"{popen.pid}@{psutil.Process(popen.pid).create_time():.2f}"

    @property
    def url(self) -> str:
        return self.plan.url

    @property
    def pid(self) -> int:
        """Also the session's and the process group's id."""
        return self._popen.pid

    @property
    def start_id(self) -> str:
        return self._start_id

    @property
    def logged(self) -> dict[str, str]:
        """Read once, when it was ready: what it logs later are requests."""
        return self._logged

    def alive(self) -> bool:
        return self._popen.poll() is None

    def last_line(self) -> str:
        """Last non-empty line of the log: where a server that died usually says why."""
        lines = [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:LAST_LINE_CHARS] if lines else "it logged nothing"

    def wait_ready(self, timeout_s: float) -> None:
        """
        Raises:
            ArmError: it died, or did not answer in time.
        """
        deadline = time.monotonic() + timeout_s
        while not self._ready():
            if not self.alive():
                raise ArmError(
                    f"the {self.plan.arm} died at start with exit code {self._popen.returncode}: {self.last_line()}",
                    hint=f"its log is {self.log}",
                )
            if time.monotonic() > deadline:
                raise ArmError(
                    f"the {self.plan.arm} was not ready after {timeout_s:g} s, last line: {self.last_line()}",
                    expected=f"200 from {self.url}/health",
                    hint=f"its log is {self.log}; protocol.ready_timeout_s in the recipe gives it longer",
                )
            time.sleep(START_POLL_S)
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            self._logged = serverlog.settings(file.read(MOST_LOG_BYTES).decode("utf-8", "replace"))

    def _ready(self) -> bool:
        if self.stamps.port_open_ns is None and not _accepts(*address(self.url)):
            return False
        self.stamps.port_open_ns = self.stamps.port_open_ns or time.perf_counter_ns()
        if not answers(self.url):
            return False
        self.stamps.ready_ns = time.perf_counter_ns()
        return True

    def stop(self) -> None:
        """End the whole session and wait until nothing of it is left and the port is free.

        A Ctrl-C while it waits goes straight to SIGKILL.

        Raises:
            ArmError: something survived SIGKILL, or the port stayed taken.
        """
        with deferred() as interrupted:
            family = _descendants(self.pid)
            for signum, patience_s in STEPS:
                if interrupted() and signum != signal.SIGKILL:
                    continue
                signal_all(self._left(family), signum)
                hurry = interrupted if signum != signal.SIGKILL else _never
                if self._gone(family, patience_s, hurry):
                    break
            left = self._left(family)
            if left:
                raise ArmError(f"processes {left} of the {self.plan.arm} survived SIGKILL", hint="kill them by hand")
            self._popen.wait()  # reap it: a zombie does not count as left
            GUARD.release(self.mark)
            host, port = address(self.url)
            deadline = time.monotonic() + PORT_FREE_S
            while not port_is_free(host, port):
                if time.monotonic() > deadline:
                    raise ArmError(f"port {port} is still taken after the {self.plan.arm} ended{holder(port)}")
                time.sleep(POLL_S)

    def _left(self, family: dict[int, float]) -> list[int]:
        """What still lives of the session, of the descendants it had, and of those that left both."""
        alive = {*members(self.pid), *marked(self.mark)}
        for pid, started in family.items():
            try:
                process = psutil.Process(pid)
                if process.create_time() == started and process.status() != psutil.STATUS_ZOMBIE:
                    alive.add(pid)
            except psutil.Error:
                continue
        return sorted(alive)

    def _gone(self, family: dict[int, float], patience_s: float, hurry: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            self._popen.poll()
            if not self._left(family):
                return True
            if hurry():
                return False
            time.sleep(POLL_S / 2)
        return False


def launch(plan: ArmPlan, log: Path, ready_timeout_s: float) -> ServerProcess:
    """Start and wait until ready; on any error or interrupt nothing is left running.

    Raises:
        ArmError: port taken, program missing, death, or never ready.
    """
    assert plan.argv is not None
    host, port = address(plan.url)
    if not port_is_free(host, port):
        raise ArmError(
            f"port {port} for the {plan.arm} is taken{holder(port)}",
            expected="a free port",
            hint="stop that process or choose another with --port",
        )
    server: ServerProcess | None = None
    mark = secrets.token_hex(8)
    try:
        with deferred(), log.open("ab") as output:
            log_start = output.tell()
            GUARD.announce(mark)
            spawn_ns = time.perf_counter_ns()
            popen = subprocess.Popen(
                plan.argv,
                env=plan.env | {MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            GUARD.watch(mark, popen.pid)
            server = ServerProcess(plan, popen, log, log_start, mark=mark)
            server.stamps.spawn_ns = spawn_ns
        server.wait_ready(ready_timeout_s)
    except OSError as error:
        raise ArmError(f"cannot start the {plan.arm}: {plan.argv[0]}: {error.strerror}") from error
    except BaseException as error:
        if server is not None:
            _stop_after(server, error)
        raise
    return server


def _stop_after(server: ServerProcess, cause: BaseException) -> None:
    """Raises ArmError that says both, the cause first, when the server does not go either; a Ctrl-C stays one."""
    try:
        server.stop()
    except ArmError as problem:
        if isinstance(cause, ArmError):
            raise ArmError(f"{cause}; moreover {problem}") from cause


def answers(url: str) -> bool:
    """Whether the server is ready: 200 from /health, or, where there is no such route, from /v1/models."""
    try:
        with control.client(url, HEALTH_TIMEOUT_S) as client:
            status, _ = control.get(client, "/health")
            if status == 404:
                status, _ = control.get(client, "/v1/models")
    except httpx.HTTPError:
        return False
    return status == 200


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


def _accepts(host: str, port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection((host, port), HEALTH_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _never() -> bool:
    return False


def _descendants(pid: int) -> dict[int, float]:
    """pid -> start time of everything below it, whatever session it moved to."""
    try:
        return {child.pid: child.create_time() for child in psutil.Process(pid).children(recursive=True)}
    except psutil.Error:
        return {}
