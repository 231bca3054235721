"""A server process: ready, dead, never ready, stubborn, with children; and nothing left of it afterwards."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gate.arm import guard, process
from gate.arm.ports import port_is_free
from gate.errors import ArmError
from gate.plan import ArmPlan
from tests.ports import free_port


def plan_of(*argv: str, port: int | None = None, env: dict[str, str] | None = None) -> ArmPlan:
    port = port or free_port()
    return ArmPlan(
        arm="candidate",
        kind="command",
        argv=tuple(word.replace("{port}", str(port)) for word in argv),
        env={"PATH": os.environ["PATH"]} if env is None else env,
        url=f"http://127.0.0.1:{port}",
        model="fake",
        checkpoint="/none",
        checkpoint_digest=None,
    )


def fake(*options: str) -> ArmPlan:
    return plan_of(sys.executable, "-m", "gate.arm.fake", "--port", "{port}", *options)


def script(code: str) -> ArmPlan:
    return plan_of(sys.executable, "-c", code)


def alive(pid: int) -> bool:
    """A zombie is not: whether it is reaped is up to the machine's first process."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def test_starts_answers_and_leaves_nothing(tmp_path: Path) -> None:
    server = process.launch(fake("--preset", "instant"), tmp_path / "log", 20)
    host, port = process.address(server.url)
    assert server.alive()
    assert not port_is_free(host, port)
    server.stop()
    assert not server.alive()
    assert port_is_free(host, port)
    assert guard.members(server.pid) == []
    server.stop()


def test_server_gets_the_planned_environment_and_its_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    log = tmp_path / "log"
    code = "import os, sys; print(sorted(os.environ)); sys.exit(3)"
    with pytest.raises(ArmError):
        process.launch(plan_of(sys.executable, "-c", code, env={"ONLY": "this", "LC_ALL": "C.UTF-8"}), log, 20)
    assert log.read_text().strip() == "['GATE_SERVER', 'LC_ALL', 'ONLY']"


def test_death_at_start_shows_the_last_log_line(tmp_path: Path) -> None:
    with pytest.raises(ArmError, match=r"candidate died at start with exit code 3: out of luck; its log is .*log$"):
        process.launch(script("print('first'); print('out of luck'); print(); exit(3)"), tmp_path / "log", 20)


def test_never_ready_times_out_and_is_stopped(tmp_path: Path) -> None:
    plan = fake("--preset", "never-healthy")
    with pytest.raises(ArmError, match=r"not ready after 1 s.*expected 200 from http.*ready_timeout_s"):
        process.launch(plan, tmp_path / "log", 1)
    assert port_is_free(*process.address(plan.url))


def test_taken_port_names_its_holder(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        plan = plan_of("true", port=taken.getsockname()[1])
        with pytest.raises(ArmError, match=rf"is taken by pid {os.getpid()} .*expected a free port; .*--port"):
            process.launch(plan, tmp_path / "log", 1)


def test_missing_program_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ArmError, match="cannot start the candidate: no-such-program: No such file"):
        process.launch(plan_of("no-such-program"), tmp_path / "log", 1)


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def started_stubborn(tmp_path: Path) -> tuple[process.ServerProcess, int]:
    """A process that ignores polite signals, and its child in a session of its own."""
    log = tmp_path / "log"
    plan = script(STUBBORN)
    with log.open("ab") as output:
        popen = subprocess.Popen(plan.argv or (), stdout=output, start_new_session=True)
    server = process.ServerProcess(plan, popen, log, mark="none")
    deadline = time.monotonic() + 60
    while not log.read_text().strip() and time.monotonic() < deadline:
        time.sleep(0.05)
    return server, int(log.read_text())


def test_stubborn_server_and_its_escaped_child_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ((signal.SIGINT, 0.3), (signal.SIGTERM, 0.3), (signal.SIGKILL, 10.0))
    monkeypatch.setattr(process, "STEPS", steps)
    server, child = started_stubborn(tmp_path)
    server.stop()
    assert not server.alive()
    assert wait_until_gone(child)


def test_ctrl_c_while_stopping_goes_straight_to_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STEPS", ((signal.SIGINT, 1e6), (signal.SIGTERM, 1e6), (signal.SIGKILL, 10.0)))
    server, child = started_stubborn(tmp_path)
    waits = iter([signal.SIGINT])

    def sleep(seconds: float) -> None:
        for number in waits:
            signal.raise_signal(number)
        time.sleep(seconds)

    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    with pytest.raises(KeyboardInterrupt):
        server.stop()
    assert not server.alive()
    assert wait_until_gone(child)


def test_killed_gate_leaves_no_server(tmp_path: Path) -> None:
    """kill -9 of the process that started it: the watcher ends the server's session."""
    code = f"""
import sys, time
from pathlib import Path
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[3])]!r}
import test_process
from gate.arm import process
server = process.launch(test_process.fake("--preset", "instant"), Path({str(tmp_path / "log")!r}), 20)
print(server.pid, flush=True)
time.sleep(600)
"""
    gate = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert gate.stdout is not None
    pid = int(gate.stdout.readline())
    assert psutil.pid_exists(pid)
    gate.kill()
    gate.wait()
    gate.stdout.close()
    assert wait_until_gone(pid)


def test_a_server_that_neither_starts_nor_goes_is_told_of_with_the_cause_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(_self: process.ServerProcess) -> None:
        raise ArmError("port 1 is still taken")

    ended = process.ServerProcess.stop
    plan = fake("--preset", "never-healthy")
    started: list[process.ServerProcess] = []
    monkeypatch.setattr(process.ServerProcess, "stop", lambda self: (started.append(self), stuck(self)))
    with pytest.raises(ArmError, match=r"^the candidate was not ready after 1 s.*; moreover port 1 is still taken$"):
        process.launch(plan, tmp_path / "log", 1)
    ended(started[0])


DAEMON = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True)"
if os.fork() == 0:
    os.setsid()
    daemon = [sys.executable, "-c", code + "; time.sleep(600)"]
    said = subprocess.Popen(daemon, stdout=subprocess.PIPE, start_new_session=True).stdout.readline()
    os.write(1, said)
    os._exit(0)
os.wait()
from gate.arm import fake
fake.main(["--port", sys.argv[1], "--preset", "instant"])
"""
"""A server that leaves a daemon: in a session of its own, its parent dead, deaf to SIGTERM. Its pid is in the log
before the server is ready."""


def daemon_of(log: Path) -> int:
    return int(next(line for line in log.read_text().splitlines() if line.isdigit()))


def test_a_daemon_in_a_session_of_its_own_is_ended_with_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "STEPS", ((signal.SIGINT, 0.3), (signal.SIGTERM, 0.3), (signal.SIGKILL, 10.0)))
    log = tmp_path / "log"
    server = process.launch(plan_of(sys.executable, "-c", DAEMON, "{port}"), log, 20)
    daemon = daemon_of(log)
    assert daemon not in guard.members(server.pid)
    assert daemon not in [child.pid for child in psutil.Process(server.pid).children(recursive=True)]
    server.stop()
    assert wait_until_gone(daemon)


def sleeper(mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={guard.MARK: mark})


def ended(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()


def test_the_watcher_ends_a_server_it_was_told_of_before_it_ran() -> None:
    """The gate was killed between the start of a server and noting its session."""
    watcher = guard.Guard()
    watcher.announce("m1")
    held = sleeper("m1")
    other = sleeper("m2")
    watcher.close()
    assert held.wait(20) == -signal.SIGTERM
    assert other.poll() is None
    ended(other)


def test_the_watcher_leaves_a_released_server_alone() -> None:
    watcher = guard.Guard()
    watcher.announce("m3")
    held = sleeper("m3")
    watcher.watch("m3", held.pid)
    watcher.release("m3")
    watcher.close()
    assert held.poll() is None
    ended(held)


TALKS = """
import runpy, sys
print("non-default args: {'max_num_seqs': %s}" % sys.argv.pop(), flush=True)
runpy.run_module("gate.arm.fake", run_name="__main__")
"""


def test_what_a_server_logged_at_this_start(tmp_path: Path) -> None:
    """The log of an earlier start stays in the file and does not count."""
    log = tmp_path / "log"
    for slots in ("8", "16"):
        server = process.launch(plan_of(sys.executable, "-c", TALKS, "--port", "{port}", slots), log, 20)
        try:
            assert server.logged["max_num_seqs"] == slots
        finally:
            server.stop()
    (log).write_text(log.read_text() + "non-default args: {'max_num_seqs': 9}")
    assert server.logged["max_num_seqs"] == "16"
