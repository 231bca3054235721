"""A whole `gate run` of fake servers: what is left on disk, and what a bad candidate does to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gate import run as gate_run
from gate.arm.fake import FakeServer
from gate.arm.fake_script import preset
from gate.conclude import conclude
from gate.errors import LockHeldError, StorageError, UsageError
from gate.inputs import Asked
from gate.lock import hold
from gate.observe import store
from gate.plan import document_hash
from gate.progress import Ui
from gate.recipe import load
from gate.report import plots
from tests.gate.bench import RECIPE, Bench, fake, interrupted


@pytest.fixture(scope="module")
def patched() -> Iterator[pytest.MonkeyPatch]:
    """Calibration and the look at the machine have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate_run, "calibrate", lambda: None)
        patch.setattr(gate_run, "preflight", lambda _plan, _out: ())
        yield patch


@pytest.fixture
def bench(
    tmp_path: Path, tiny_checkpoint: Path, patched: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    del patched
    monkeypatch.setenv("GATE_LOCK_DIR", str(tmp_path / "locks"))
    made = Bench(tmp_path, tiny_checkpoint)
    yield made
    made.assert_nothing_is_left()


@pytest.fixture(scope="module")
def done(
    tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, patched: pytest.MonkeyPatch
) -> tuple[Bench, int]:
    """One whole run of two equal servers, and its exit code."""
    folder = tmp_path_factory.mktemp("whole")
    patched.setenv("GATE_LOCK_DIR", str(folder / "locks"))
    made = Bench(folder, tiny_checkpoint)
    return made, made.run(fake(), concurrency="1,2")


def test_whole_run_leaves_everything_and_judges_equal_arms(
    done: tuple[Bench, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, code = done
    monkeypatch.setenv("GATE_LOCK_DIR", str(bench.out.parent / "locks"))
    bench.assert_nothing_is_left()
    report = bench.report
    assert (report.complete, report.exit_code) == (True, code)
    assert [leg.split("-")[1] for leg in report.order] == ["candidate", "oracle"] * 2 + ["oracle", "candidate"] * 2
    assert all(cell.exact == cell.sequences for cell in report.tokens)
    assert sum(cell.sequences for cell in report.tokens) == 12
    names = {path.name for path in bench.folder.iterdir()}
    expected = {"plan.json", "run.json", "identities.json", "complete.json", "logs", "legs"}
    expected |= {f"{name}.parquet" for name in ("requests", "legs", "cells", "telemetry")}
    expected |= {f"report.{end}" for end in ("json", "md", "html")}
    assert expected <= names
    assert {name for name in names if name.endswith(".svg")} == set(plots.drawn(report))
    assert not [path for path in bench.folder.rglob("*") if path.name.endswith(".partial")]


def test_report_is_derived_again_to_the_byte(done: tuple[Bench, int]) -> None:
    folder = done[0].folder
    before = (folder / "report.json").read_bytes()
    (folder / "report.json").unlink()
    conclude(folder)
    assert (folder / "report.json").read_bytes() == before


def test_plan_on_disk_is_the_plan_that_ran(done: tuple[Bench, int]) -> None:
    folder = done[0].folder
    plan = json.loads((folder / "plan.json").read_text())
    assert folder.name.endswith(f"-fakes-{plan['plan_id'][:8]}")
    data = store.read_run(folder)
    assert [leg.leg_id for leg in data.legs] == [leg.leg_id for leg in data.plan.legs]


def test_complete_run_is_not_resumed(done: tuple[Bench, int]) -> None:
    with pytest.raises(UsageError, match="is complete; gate show"):
        gate_run.resume(done[0].folder, Ui())


def test_one_server_at_a_time_starts_anew_for_each_block(bench: Bench) -> None:
    bench.run(fake(), residency="alternate")
    data = store.read_run(bench.folder)
    assert len({leg.server_start_id for leg in data.legs}) == 4


def test_diverging_tokens_are_asked_about(bench: Bench) -> None:
    bench.attached("diverge")
    run = store.read_run(bench.folder)
    judged = [row for row in run.forced if row.arm == "candidate"]
    assert len(judged) == 4
    assert all(row.error is None and len(row.gaps_nats) == 6 for row in judged)
    assert {split.position for split in bench.report.divergences} == {3}
    assert sum(cell.near_tie + cell.diverged for cell in bench.report.tokens) == 4
    own = bench.report.tokens[0].own
    assert own is not None
    assert (own.repeated, own.agreeing, own.sequences, own.largest_nats) == (2, 2, 4, 0.0)


def test_candidate_that_answers_nothing_is_restarted_once_and_given_up(bench: Bench) -> None:
    assert bench.run(fake("garbage"), repetitions=3) == 3
    report = bench.report
    assert not report.complete
    assert report.counts["VOID"] == len(report.cells)
    data = store.read_run(bench.folder)
    assert all(request.error for request in data.requests if request.arm == "candidate")
    assert all(request.error is None for request in data.requests if request.arm == "oracle")
    starts = [leg.server_start_id for leg in data.legs if leg.arm == "candidate"]
    assert len(starts) == len(set(starts)) == 2


def test_hanging_candidate_costs_one_timeout_a_leg(bench: Bench) -> None:
    assert bench.attached("no-answer", timeout_s=0.3) == 3
    candidate = [request for request in store.read_run(bench.folder).requests if request.arm == "candidate"]
    assert candidate
    assert all("not sent, no warm-up request was answered" in str(request.error) for request in candidate)


def test_one_bad_request_voids_its_level_only(bench: Bench) -> None:
    bench.attached("one-error", concurrency="1,2")
    report = bench.report
    assert report.complete
    voided = {cell.concurrency for cell in report.cells if "error-after-tokens" in {r.code for r in cell.reasons}}
    assert voided == {1}


def test_one_bad_warm_up_request_is_told_and_voids_nothing(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """The third request is the last warm-up of three streams."""
    bench.attached("one-error", concurrency="3")
    said = "000-candidate-c3-r0: 1 warm-up request failed, first: server error after 3 token events: scripted failure"
    assert said in capsys.readouterr().err
    assert [leg.warmup_failed for leg in store.read_run(bench.folder).legs] == [1, 0, 0, 0]
    why = (
        "the candidate failed 1 warm-up request in 1 leg, first 000-candidate-c3-r0: server error after 3 token events"
    )
    assert [reason for reason in bench.report.not_binding_because if reason.startswith(why)]
    assert not {reason.code for cell in bench.report.cells for reason in cell.reasons} & {
        "error-after-tokens", "failed-request"
    }  # fmt: skip


def test_resume_measures_only_what_is_missing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run_leg, measured = gate_run.run_leg, []

    def two_legs(*arguments: Any, **named: Any) -> Any:
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(arguments[1].leg_id)
        return run_leg(*arguments, **named)

    monkeypatch.setattr(gate_run, "run_leg", two_legs)
    with FakeServer(preset("instant")) as ours, FakeServer(preset("instant")) as theirs:
        assert bench.run(ours.url, theirs.url) == 130
        assert not bench.report.complete
        kept = {path: path.read_bytes() for path in bench.folder.glob("legs/*/*.parquet")}
        monkeypatch.setattr(gate_run, "run_leg", run_leg)
        code = gate_run.resume(bench.folder, Ui())
    report = bench.report
    assert (report.complete, report.exit_code) == (True, code)
    assert "resumed" in {finding.code for finding in report.findings}
    assert all(path.read_bytes() == data for path, data in kept.items())


def test_a_run_planned_before_the_minimum_of_requests_is_resumed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(preset("instant")) as ours, FakeServer(preset("instant")) as theirs:
        with monkeypatch.context() as cut:
            cut.setattr(gate_run, "run_leg", interrupted)
            with pytest.raises(KeyboardInterrupt):
                bench.run(ours.url, theirs.url)
        old = json.loads((bench.folder / "plan.json").read_text())
        del old["recipe"]["workload"]["min_requests_per_leg"], old["recipe"]["workload"]["start"]
        store.Store(bench.folder).write_text("plan.json", json.dumps(old | {"plan_id": document_hash(old)}))
        gate_run.resume(bench.folder, Ui())
    assert bench.report.complete
    assert bench.report.plan_id == document_hash(old)


def test_extra_blocks_run_where_they_are_due_and_a_resumed_run_goes_on_with_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_leg, measured = gate_run.run_leg, []

    def one_extra_leg(*arguments: Any, **named: Any) -> Any:
        if len(measured) == 5:
            raise KeyboardInterrupt
        measured.append(arguments[1].leg_id)
        return run_leg(*arguments, **named)

    def all_due(run: Any) -> Any:
        return run.plan.extra_legs if len(run.legs) >= len(run.plan.legs) else ()

    monkeypatch.setattr(gate_run, "due", all_due)
    monkeypatch.setattr(gate_run, "run_leg", one_extra_leg)
    with FakeServer(preset("instant")) as ours, FakeServer(preset("instant")) as theirs:
        text = RECIPE.replace("repetitions = 2", "repetitions = 2\nextra_blocks = 1")
        where = {"checkpoint": bench.checkpoint, "candidate": ours.url, "oracle": theirs.url, "timeout_s": 30}
        bench.recipe.write_text(text.format(**where), encoding="utf-8")
        assert gate_run.run(Asked(recipe=str(bench.recipe), coin="candidate"), bench.out, Ui()) == 130
        monkeypatch.setattr(gate_run, "run_leg", run_leg)
        gate_run.resume(bench.folder, Ui())
    data = store.read_run(bench.folder)
    assert [leg.leg_id for leg in data.legs] == [leg.leg_id for leg in data.plan.all_legs]
    assert "".join("A" if leg.arm == "candidate" else "B" for leg in data.legs) == "ABBAABBA"
    assert bench.report.complete


def test_what_the_command_line_left_out_of_the_recipe_keeps_the_grid_from_binding(bench: Bench) -> None:
    text = RECIPE.replace("concurrency = [1]", "concurrency = [1, 2]").replace("repetitions = 2", "repetitions = 4")
    with FakeServer(preset("instant")) as ours, FakeServer(preset("instant")) as theirs:
        bench.recipe.write_text(
            text.format(checkpoint=bench.checkpoint, candidate=ours.url, oracle=theirs.url, timeout_s=30)
        )
        asked = Asked(recipe=str(bench.recipe), concurrency="1", repetitions=2, residency="alternate", coin="oracle")
        gate_run.run(asked, bench.out, Ui())
    why = bench.report.not_binding_because
    assert "declared concurrencies not measured: 2" in why
    assert "2 repetitions, the recipe declares 4" in why
    assert "residency alternate, the recipe declares both" in why


def test_a_start_tells_what_the_last_one_took(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(fake())
    assert "on this host before" not in capsys.readouterr().err
    bench.run(fake())
    assert capsys.readouterr().err.count("on this host before") == 2


def test_held_lock_starts_nothing(bench: Bench) -> None:
    asked = bench.asked(fake(), fake())
    with hold(load(str(bench.recipe))), pytest.raises(LockHeldError, match="is held by"):
        gate_run.run(asked, bench.out, Ui())
    assert not bench.out.exists()


def test_unwritable_results_are_found_before_a_server_starts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.out.write_text("a file where the folder should be", encoding="utf-8")
    monkeypatch.setattr(gate_run, "measure", lambda *_: pytest.fail("a server was started"))
    with pytest.raises(StorageError, match=r"cannot write .*Not a directory; free space or choose"):
        bench.run(fake())


def test_a_candidate_that_asks_the_oracle_is_found_out(bench: Bench) -> None:
    """The plainest proxy: both names lead to one server, which answers for the candidate too."""
    with FakeServer(preset("instant")) as only:
        bench.run(only.url, only.url.replace("127.0.0.1", "localhost"))
    report = bench.report
    assert report.counts["VOID"] == len(report.cells)
    assert "idle-arm-active" in {finding.code for finding in report.findings}


def test_records_of_a_finished_run_cannot_be_edited_unnoticed(bench: Bench) -> None:
    bench.attached()
    for name in ("legs/000-candidate-c1-r0/requests.parquet", "run.json", "identities.json"):
        path = bench.folder / name
        before = path.read_bytes()
        path.write_bytes(before + b" ")
        with pytest.raises(StorageError, match=f"{path.name} was changed after the run was finished"):
            conclude(bench.folder)
        path.unlink()
        with pytest.raises(StorageError, match="is missing after the run was finished"):
            conclude(bench.folder)
        path.write_bytes(before)
    assert conclude(bench.folder) == bench.report


def test_an_edited_plan_is_refused(bench: Bench) -> None:
    bench.attached()
    path = bench.folder / "plan.json"
    path.write_text(path.read_text().replace('"floor": 1.0', '"floor": 0.5'))
    with pytest.raises(StorageError, match="does not hash to its own plan_id"):
        conclude(bench.folder)


def test_a_merged_table_is_written_anew_from_the_legs(bench: Bench) -> None:
    bench.attached()
    path = bench.folder / "requests.parquet"
    before = path.read_bytes()
    path.write_bytes(b"edited")
    conclude(bench.folder)
    assert path.read_bytes() == before


def test_a_run_is_not_resumed_on_another_machine(bench: Bench) -> None:
    bench.attached()
    (bench.folder / "complete.json").unlink()
    about = store.read_run_file(bench.folder)
    store.Store(bench.folder).write_run(about.model_copy(update={"machine": about.machine | {"gpu0_uuid": "GPU-1"}}))
    with pytest.raises(UsageError, match="begun on another machine: its gpu0_uuid is GPU-1"):
        gate_run.resume(bench.folder, Ui())
