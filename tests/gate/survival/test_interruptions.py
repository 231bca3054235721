"""What ends a run from outside: signals beside a server that is deaf to them, and a reboot between two legs."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gate import lock
from gate import run as gate_run
from gate.arm.fake import FakeServer
from gate.arm.fake_script import preset
from gate.observe import host, store
from gate.progress import Ui
from tests.gate.arm.test_process import DAEMON, alive
from tests.gate.bench import Bench
from tests.gate.test_cli import Running, write_recipe

DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + DAEMON


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GATE_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("GATE_HOST", "box")
    return tmp_path


def deaf(place: Path, checkpoint: Path) -> Running:
    """A gate in its first leg, with a candidate that ignores SIGINT and SIGTERM and has left a daemon behind."""
    script = place / "deaf.py"
    script.write_text(DEAF.replace('"instant"', '"no-answer"'), encoding="utf-8")
    recipe = Path(write_recipe(place, checkpoint))
    text = recipe.read_text(encoding="utf-8").replace(
        f"{sys.executable} -m gate.arm.fake --port {{port}} --preset instant",
        f"{sys.executable} {shlex.quote(str(script))} {{port}}",
        1,
    )
    recipe.write_text(text.replace("repetitions = 2", 'repetitions = 2\nresidency = "alternate"'), encoding="utf-8")
    running = Running(place, str(recipe))
    running.until(running.said("candidate c1 r0"))
    return running


def left(place: Path) -> list[int]:
    """Servers of this test that live."""
    return [p.pid for p in psutil.process_iter(["cmdline"]) if str(place / "deaf.py") in (p.info["cmdline"] or ())]


def daemons(place: Path) -> list[int]:
    (log,) = place.glob("results/box/*/logs/candidate.log")
    return [int(line) for line in log.read_text(encoding="utf-8").splitlines() if line.isdigit()]


@pytest.mark.slow
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_goes_straight_to_kill(place: Path, tiny_checkpoint: Path, first: int) -> None:
    """One polite signal would wait half a minute for this server; with a second nothing is waited for."""
    running = deaf(place, tiny_checkpoint)
    assert len(daemons(place)) == 1
    running.process.send_signal(first)
    running.until(running.said("stopping both servers"))
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(120) == 130
    assert "Traceback" not in running.log.read_text(encoding="utf-8")
    assert running.ports_are_free()
    assert not left(place)
    assert not any(map(alive, daemons(place)))


@pytest.mark.slow
def test_a_killed_gate_s_deaf_server_and_daemon_are_ended_before_the_lock_is_free(
    place: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "WATCHER_S", 180.0)
    running = deaf(place, tiny_checkpoint)
    pids = daemons(place)
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()
    descriptor = lock.take(lock.folder() / "host.lock")  # waits for the watcher
    assert running.ports_are_free()
    assert not any(map(alive, pids))
    os.close(descriptor)


@pytest.fixture
def bench(tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(gate_run, "calibrate", lambda: None)
    monkeypatch.setattr(gate_run, "preflight", lambda _plan, _out: ())
    made = Bench(tmp_path, tiny_checkpoint)
    yield made
    made.assert_nothing_is_left()


@pytest.mark.parametrize(("before", "voided"), [(2, False), (3, True)])
def test_a_reboot_between_two_legs(bench: Bench, monkeypatch: pytest.MonkeyPatch, before: int, voided: bool) -> None:
    """The clock starts again from less. Whole repetitions stand; one that straddles the reboot is VOID.

    Ten minutes less where it says more: timers tick by the true clock, and one that was due when this machine booted
    would count every tick since.
    """
    run_leg, clock, legs = gate_run.run_leg, time.perf_counter_ns, []
    lost = min(clock(), 600 * 10**9)

    def until(*arguments: Any, **named: Any) -> Any:
        if len(legs) == before:
            raise KeyboardInterrupt
        legs.append(arguments)
        return run_leg(*arguments, **named)

    monkeypatch.setattr(gate_run, "run_leg", until)
    with FakeServer(preset("instant")) as ours, FakeServer(preset("instant")) as theirs:
        assert bench.run(ours.url, theirs.url) == 130
        boot_id = bench.out.parent / "boot_id"
        boot_id.write_text("another\n", encoding="ascii")
        monkeypatch.setattr(host, "BOOT_ID", boot_id)
        monkeypatch.setattr(time, "perf_counter_ns", lambda: clock() - lost)
        monkeypatch.setattr(gate_run, "run_leg", run_leg)
        gate_run.resume(bench.folder, Ui())
    data, report = store.read_run(bench.folder), bench.report
    assert [leg.leg_id for leg in data.legs] == [leg.leg_id for leg in data.plan.legs]
    assert data.legs[0].start_ns > data.legs[-1].start_ns
    assert report.complete
    assert ("boot-changed" in {reason.code for cell in report.cells for reason in cell.reasons}) == voided
    assert any("resumed after" in why for why in report.not_binding_because)
