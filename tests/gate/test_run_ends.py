"""How a run ends early: a server that dies, a full disk, Ctrl-C; what is kept of it, and that its report says why."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gate import run as gate_run
from gate import shown
from gate.arm.fake import FakeServer
from gate.arm.fake_script import preset
from gate.conclude import conclude, stored
from gate.errors import ArmError, StorageError
from gate.observe import seals, store
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


def test_an_oracle_that_dies_after_the_last_leg_is_why_and_no_leg_is_said_to_miss(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def dead(*_arguments: object) -> None:
        raise ArmError("the oracle died")

    monkeypatch.setattr(gate_run, "look_again", dead)
    bench.run(fake(), fake(), repetitions=1)
    told = "every planned leg is there, but the run was cut off before it was complete: the oracle died"
    assert told in bench.report.not_binding_because
    said = f"the oracle died; 2 legs measured and judged; gate resume {bench.folder.name} completes it"
    assert said in capsys.readouterr().err.splitlines()


def test_dead_at_start_leaves_no_report_and_both_servers_gone(bench: Bench) -> None:
    with pytest.raises(ArmError, match="the oracle died at start with exit code 1"):
        bench.run(fake(), f"{sys.executable} -c 'raise SystemExit(1)' {{port}}")
    assert not (bench.folder / "report.json").exists()
    (entry,) = entries(bench.out)
    assert "the oracle died at start" in (entry.failure or "")
    with pytest.raises(StorageError, match="nothing measured: the oracle died at start"):
        stored(bench.folder)


def test_a_run_that_failed_to_start_has_no_verdict_and_says_what_the_run_said(bench: Bench) -> None:
    """INCONCLUSIVE is said of what was measured: here there is nothing that more repetitions could add to."""
    with pytest.raises(ArmError) as caught:
        bench.run(f"{sys.executable} -c 'raise SystemExit(1)' {{port}}")
    assert str(caught.value).startswith("the candidate died at start with exit code 1: it logged nothing")
    for again in (shown.report, functools.partial(shown.show, every=False)):
        with pytest.raises(StorageError, match="ended with nothing measured: the candidate died at start") as told:
            again(None, bench.out)
        assert str(caught.value) in str(told.value)
        assert told.value.exit_code == 69
    assert not (bench.folder / "report.json").exists()
    (entry,) = entries(bench.out)
    assert (entry.failure, entry.complete, entry.verdict) == (str(caught.value), False, None)


def test_a_run_that_was_killed_before_its_first_leg_says_how_to_go_on(bench: Bench) -> None:
    """By a signal that leaves it no time to write down why."""
    with pytest.raises(ArmError):
        bench.run(f"{sys.executable} -c 'raise SystemExit(1)' {{port}}")
    (bench.folder / "failed.json").unlink()
    with pytest.raises(
        StorageError, match=r"no report, and no records to derive one from; gate resume .* goes through the whole plan"
    ):
        shown.report(None, bench.out)


def test_the_report_of_one_that_ended_early_says_what_the_run_said(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_leg, legs = gate_run.run_leg, iter(range(9))

    def dies_in_the_second(*given: Any, **named: Any) -> Any:
        if next(legs) == 1:
            raise ArmError("the candidate died <again>")
        return run_leg(*given, **named)

    monkeypatch.setattr(gate_run, "run_leg", dies_in_the_second)
    assert bench.attached() in (2, 3)
    capsys.readouterr()
    conclude(bench.folder)
    assert early(bench) == "3 of 4 legs missing: the candidate died <again>"
    assert "3 of 4 legs missing: the candidate died <again>" in capsys.readouterr().out
    for name, written in (("report.md", r"the candidate died \<again\>"), ("report.html", "died &lt;again&gt;")):
        assert written in (bench.folder / name).read_text(encoding="utf-8")


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
    told = "every planned leg is there, but the run was cut off before it was complete: the run was interrupted"
    assert told in bench.report.not_binding_because
    assert not seals.is_complete(bench.folder)


def test_ctrl_c_in_the_report_keeps_every_leg(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_run, "conclude", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.attached()
    assert not seals.is_complete(bench.folder)
    assert len(store.read_run(bench.folder).legs) == 4


def test_ctrl_c_before_the_first_leg_leaves_no_report(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_run, "run_leg", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.run(fake())
    assert not (bench.folder / "report.json").exists()
