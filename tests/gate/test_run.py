"""A whole `gate run` of fake servers: what is left on disk, and what a bad candidate does to it."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gate import run as gate_run
from gate.conclude import conclude, stored
from gate.errors import ArmError, LockHeldError, StorageError, UsageError
from gate.inputs import Asked
from gate.lock import hold
from gate.observe import store
from gate.progress import Ui
from gate.report.model import Report
from gate.runs import find

RECIPE = """
schema_version = 1
name = "fakes"
gpu = false
[checkpoint]
path = "{checkpoint}"
[workload]
prompt_tokens = 12
output_tokens = 6
[protocol]
concurrency = [1, 2]
repetitions = 2
ready_timeout_s = 20
request_timeout_s = {timeout_s}
[candidate]
kind = "{candidate}"
[oracle]
kind = "{oracle}"
platform = "cpu"
"""


def fake(*options: str) -> str:
    return " ".join([sys.executable, "-m", "gate.arm.fake", "--port", "{port}", *options])


def free_port() -> int:
    """A port whose successor is free as well."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            try:
                two.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


class Bench:
    """A results folder of its own, and runs into it."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        self.out = folder / "results"
        self.recipe = folder / "fakes.toml"
        self.checkpoint = checkpoint
        self.port = free_port()

    def asked(self, candidate: str, oracle: str | None = None, timeout_s: float = 20, **changes: Any) -> Asked:
        text = RECIPE.format(
            checkpoint=self.checkpoint,
            candidate=candidate,
            oracle=oracle or fake("--preset", "instant"),
            timeout_s=timeout_s,
        )
        self.recipe.write_text(text, encoding="utf-8")
        return Asked(recipe=str(self.recipe), port=self.port, coin="candidate", **changes)

    def run(self, candidate: str, **changes: Any) -> int:
        return gate_run.run(self.asked(candidate, **changes), self.out, Ui())

    @property
    def folder(self) -> Path:
        return find(None, self.out)

    @property
    def report(self) -> Report:
        return stored(self.folder)


@pytest.fixture
def bench(tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Leaving it proves that no server, port or lock outlives a run, however the run went."""
    monkeypatch.setenv("GATE_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setattr(gate_run, "calibrate", lambda: None)
    monkeypatch.setattr(gate_run, "preflight", lambda _plan, _out: ())
    made = Bench(tmp_path, tiny_checkpoint)
    yield made
    for port in (made.port, made.port + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    children = [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    assert not [child for child in children if "gate.arm.fake" in " ".join(child.cmdline())]
    if made.recipe.exists():
        from gate.recipe import load

        with hold(load(str(made.recipe))) as lock:
            assert lock.held()


def codes(report: Report) -> set[str]:
    return {reason.code for cell in report.cells for reason in cell.reasons}


def test_whole_run_leaves_everything_and_judges_equal_arms(bench: Bench) -> None:
    code = bench.run(fake("--preset", "instant"))
    report = bench.report
    assert (report.complete, report.exit_code) == (True, code)
    assert [leg.rsplit("-", 2)[0] for leg in report.order[:4]] == [
        "000-candidate",
        "001-oracle",
        "002-candidate",
        "003-oracle",
    ]
    assert all(cell.exact == cell.sequences for cell in report.tokens)
    assert sum(cell.sequences for cell in report.tokens) == 12
    names = {path.name for path in bench.folder.iterdir()}
    expected = {"plan.json", "run.json", "identities.json", "complete.json", "logs", "legs"}
    expected |= {f"{name}.parquet" for name in ("requests", "legs", "cells", "telemetry")}
    expected |= {f"report.{end}" for end in ("json", "md", "html")}
    assert expected <= names
    assert any(name.endswith(".svg") for name in names)
    assert not [path for path in bench.folder.rglob("*") if path.name.endswith(".partial")]


def test_report_is_derived_again_to_the_byte(bench: Bench) -> None:
    bench.run(fake("--preset", "instant"))
    before = (bench.folder / "report.json").read_bytes()
    (bench.folder / "report.json").unlink()
    conclude(bench.folder)
    assert (bench.folder / "report.json").read_bytes() == before


def test_one_server_at_a_time(bench: Bench) -> None:
    bench.run(fake("--preset", "instant"), residency="alternate")
    data = store.read_run(bench.folder)
    starts = [(leg.arm, leg.repetition, leg.server_start_id) for leg in data.legs]
    assert len({start for *_, start in starts}) == len({(arm, repetition) for arm, repetition, _ in starts}) == 4


def test_diverging_tokens_are_asked_about(bench: Bench) -> None:
    bench.run(fake("--preset", "diverge"))
    margins = store.read_run(bench.folder).margins
    assert len(margins) == 12
    assert {row.position for row in margins} == {3}
    assert all(row.margin_nats is not None or row.outside_top for row in margins)
    assert sum(cell.near_tie + cell.diverged for cell in bench.report.tokens) == 12


@pytest.mark.parametrize(
    ("preset", "said"),
    [
        ("garbage", ""),
        ("drop", "after 3 token events"),
        ("http-500", "HTTP 500"),
        ("not-a-stream", "not an event stream"),
        ("error-event", ""),
    ],
)
def test_candidate_that_answers_nothing_is_restarted_once_and_given_up(bench: Bench, preset: str, said: str) -> None:
    assert bench.run(fake("--preset", preset)) == 3
    report = bench.report
    assert not report.complete
    assert report.counts["VOID"] == len(report.cells)
    data = store.read_run(bench.folder)
    errors = {request.error for request in data.requests if request.arm == "candidate"}
    assert all(error and said in error for error in errors)
    assert all(request.error is None for request in data.requests if request.arm == "oracle")
    assert len({leg.server_start_id for leg in data.legs if leg.arm == "candidate"}) == 2


def test_hanging_candidate_costs_one_timeout_a_leg(bench: Bench) -> None:
    assert bench.run(fake("--preset", "no-answer"), timeout_s=0.3) == 3
    candidate = [request for request in store.read_run(bench.folder).requests if request.arm == "candidate"]
    assert all("not sent, no warm-up request was answered" in str(request.error) for request in candidate)


def test_candidate_that_dies_in_a_leg_keeps_what_was_measured(bench: Bench) -> None:
    assert bench.run(fake("--preset", "dies")) == 3
    data, report = store.read_run(bench.folder), bench.report
    good = [leg for leg in data.legs if leg.failed == 0]
    assert good
    assert len(data.legs) < len(data.plan.legs)
    assert "failed-request" in codes(report)
    assert (data.finished_at, report.complete) == (None, False)


def test_one_bad_request_voids_its_level_only(bench: Bench) -> None:
    """The fourth candidate leg is c1's last; one failed request in it leaves c2 alone."""
    bench.run(fake("--preset", "one-error"))
    report = bench.report
    assert report.complete
    by_level = {
        level: {
            cell.verdict for cell in report.cells if cell.concurrency == level and "error-after-tokens" in codes_of(cell)
        }
        for level in (1, 2)
    }
    assert sorted(len(verdicts) for verdicts in by_level.values()) == [0, 1]


def codes_of(cell: Any) -> set[str]:
    return {reason.code for reason in cell.reasons}


def test_resume_measures_only_what_is_missing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run_leg, measured = gate_run.run_leg, []

    def three_legs(*arguments: Any, **named: Any) -> Any:
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append(arguments[1].leg_id)
        return run_leg(*arguments, **named)

    monkeypatch.setattr(gate_run, "run_leg", three_legs)
    assert bench.run(fake("--preset", "instant")) == 130
    assert not bench.report.complete
    kept = {path: path.read_bytes() for path in bench.folder.glob("legs/*/*.parquet")}
    monkeypatch.setattr(gate_run, "run_leg", run_leg)
    code = gate_run.resume(bench.folder, Ui())
    report = bench.report
    assert (report.complete, report.exit_code) == (True, code)
    assert "resumed" in {finding.code for finding in report.findings}
    assert all(path.read_bytes() == data for path, data in kept.items())
    with pytest.raises(UsageError, match="is complete"):
        gate_run.resume(bench.folder, Ui())


def test_dead_at_start_leaves_no_report_and_both_servers_gone(bench: Bench) -> None:
    with pytest.raises(ArmError, match="the candidate died at start with exit code 1"):
        bench.run(f"{sys.executable} -c 'raise SystemExit(1)' {{port}}")
    assert not (bench.folder / "report.json").exists()


def test_held_lock_starts_nothing(bench: Bench) -> None:
    from gate.recipe import load

    asked = bench.asked(fake())
    with hold(load(str(bench.recipe))), pytest.raises(LockHeldError, match="is held by"):
        gate_run.run(asked, bench.out, Ui())
    assert not bench.out.exists()


def test_unwritable_results_are_found_before_a_server_starts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.out.write_text("a file where the folder should be", encoding="utf-8")
    monkeypatch.setattr(gate_run, "measure", lambda *_: pytest.fail("a server was started"))
    with pytest.raises(StorageError, match=r"cannot write .*Not a directory; free space or choose"):
        bench.run(fake())


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
        bench.run(fake("--preset", "instant"))
    assert len(store.read_run(bench.folder).legs) == 2


@pytest.mark.parametrize("at", ["ready", "margins", "report"])
def test_ctrl_c_keeps_what_was_measured(bench: Bench, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    def interrupted(*_arguments: object, **_named: object) -> None:
        raise KeyboardInterrupt

    places: dict[str, tuple[Any, str]] = {
        "ready": (gate_run.Pair, "ready"),
        "margins": (gate_run, "ask_margins"),
        "report": (gate_run, "conclude"),
    }
    monkeypatch.setattr(*places[at], interrupted)
    run: Callable[[], int] = lambda: bench.run(fake("--preset", "instant"))  # noqa: E731
    if at == "margins":
        assert run() == 130
        assert not bench.report.complete
        assert len(bench.report.order) == 8
    else:
        with pytest.raises(KeyboardInterrupt):
            run()
    assert not store.is_complete(bench.folder)
    assert len(store.read_run(bench.folder).legs) == (0 if at == "ready" else 8)


def test_plan_on_disk_is_the_plan_that_ran(bench: Bench) -> None:
    bench.run(fake("--preset", "instant"))
    plan = json.loads((bench.folder / "plan.json").read_text())
    assert bench.folder.name.endswith(f"-fakes-{plan['plan_id'][:8]}")
    data = store.read_run(bench.folder)
    assert [leg.leg_id for leg in data.legs] == [leg.leg_id for leg in data.plan.legs]
