"""How a run ends early: a server that dies, a full disk, Ctrl-C; what is kept of it, and that its report says why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gate import run as gate_run
from gate.arm.fake import FakeServer
from gate.arm.fake_script import preset
from gate.conclude import conclude, stored
from gate.errors import ArmError, StorageError
from gate.observe import store
from gate.progress import Ui
from gate.runs import entries
from tests.gate.bench import Bench, fake, interrupted


@pytest.fixture
def bench(tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("GATE_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setattr(gate_run, "calibrate", lambda: None)
    monkeypatch.setattr(gate_run, "preflight", lambda _plan, _out: ())
    made = Bench(tmp_path, tiny_checkpoint)
    yield made
    made.assert_nothing_is_left()


def early(bench: Bench) -> str:
    """Why the legs are missing, as the report says it."""
    (found,) = (why for why in bench.report.not_binding_because if "legs missing" in why)
    return found


def test_candidate_that_dies_in_a_leg_keeps_what_was_measured(bench: Bench) -> None:
    """It answers four requests: its first leg, and its first after the restart, are good; the second death ends it."""
    assert bench.run(fake("dies"), repetitions=5) == 3
    data, report = store.read_run(bench.folder), bench.report
    good = [leg for leg in data.legs if leg.arm == "candidate" and leg.failed == 0]
    assert good
    assert len(data.legs) < len(data.plan.legs)
    assert (data.finished_at, report.complete) == (None, False)
    assert " of 10 legs missing: the candidate died again after a restart; its log is " in early(bench)


def test_dead_at_start_leaves_no_report_and_both_servers_gone(bench: Bench) -> None:
    with pytest.raises(ArmError, match="the oracle died at start with exit code 1"):
        bench.run(fake(), f"{sys.executable} -c 'raise SystemExit(1)' {{port}}")
    assert not (bench.folder / "report.json").exists()
    (entry,) = entries(bench.out)
    assert "the oracle died at start" in (entry.failure or "")
    with pytest.raises(StorageError, match="nothing measured: the oracle died at start"):
        stored(bench.folder)


def test_the_report_of_a_run_that_failed_to_start_says_what_the_run_said(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ArmError) as caught:
        bench.run(f"{sys.executable} -c 'raise SystemExit(1)' {{port}}")
    assert str(caught.value).startswith("the candidate died at start with exit code 1: it logged nothing")
    conclude(bench.folder)
    assert early(bench) == f"4 of 4 legs missing: {caught.value}"
    assert "4 of 4 legs missing: the candidate died at start" in capsys.readouterr().out
    assert "the candidate died at start" in (bench.folder / "report.md").read_text(encoding="utf-8")
    assert "the candidate died at start" in (bench.folder / "report.html").read_text(encoding="utf-8")
    (entry,) = entries(bench.out)
    assert (entry.failure, entry.complete) == (str(caught.value), False)


def test_a_run_that_failed_to_start_is_resumed_at_leg_1(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run_leg = gate_run.run_leg
    monkeypatch.setattr(gate_run, "run_leg", interrupted)
    with FakeServer(preset("instant")) as ours, FakeServer(preset("instant")) as theirs:
        with pytest.raises(KeyboardInterrupt):
            bench.run(ours.url, theirs.url)
        monkeypatch.setattr(gate_run, "run_leg", run_leg)
        gate_run.resume(bench.folder, Ui())
    assert bench.report.complete
    assert "resumed" not in {finding.code for finding in bench.report.findings}
    assert not [why for why in bench.report.not_binding_because if "missing" in why]


def test_resumed_twice_after_the_same_leg_is_said_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_run, "look_again", interrupted)
    with FakeServer(preset("instant")) as ours, FakeServer(preset("instant")) as theirs:
        bench.run(ours.url, theirs.url)
        for _ in range(2):
            gate_run.resume(bench.folder, Ui())
    assert [finding.code for finding in store.read_run_file(bench.folder).preflight] == ["resumed"]


def test_full_disk_in_a_leg_ends_the_run_and_keeps_the_legs_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, legs = store.Store.append_leg, []

    def full(self: store.Store, *rows: Any) -> None:
        if len(legs) == 2:
            raise StorageError("cannot write legs: No space left on device")
        legs.append(rows)
        append(self, *rows)

    monkeypatch.setattr(store.Store, "append_leg", full)
    with pytest.raises(StorageError, match="No space left"):
        bench.attached()
    assert len(store.read_run(bench.folder).legs) == 2


def test_ctrl_c_while_margins_are_asked_still_reports(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_run, "look_again", interrupted)
    assert bench.attached() == 130
    assert not bench.report.complete
    assert len(bench.report.order) == 4
    assert early(bench) == "0 of 4 legs missing: the run was interrupted"
    assert not store.is_complete(bench.folder)


def test_ctrl_c_in_the_report_keeps_every_leg(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_run, "conclude", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.attached()
    assert not store.is_complete(bench.folder)
    assert len(store.read_run(bench.folder).legs) == 4


def test_ctrl_c_before_the_first_leg_leaves_no_report(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_run, "run_leg", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.run(fake())
    assert not (bench.folder / "report.json").exists()
