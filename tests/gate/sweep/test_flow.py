"""`gate sweep` with scripted servers: arms in turns, the same prompts for both, and one line for what cannot be."""

from __future__ import annotations

import functools
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from gate import runs, shown
from gate.arm import Server
from gate.arm.fake import FakeServer
from gate.arm.fake_script import preset
from gate.arm.pair import Pair
from gate.errors import ArmError, PreconditionError, StorageError, UsageError
from gate.inputs import Asked
from gate.observe import parquet
from gate.observe.rows import RequestRow
from gate.plan import PlannedLeg
from gate.preflight import program
from gate.progress import Ui
from gate.sweep import flow
from gate.sweep.points import points
from gate.sweep.record import SweepPlan, SweepReport
from tests.gate.aside_reports import (
    changed_records_are_refused,
    changed_reports_are_refused,
    exit_code_is_kept_without_a_reader,
    lost_seals_are_told,
)
from tests.ports import free_port

RECIPE = """
schema_version = 1
name = "fakes"
gpu = false
max_model_len = 64
[checkpoint]
path = "{checkpoint}"
[workload]
prompt_tokens = 12
output_tokens = 6
[protocol]
concurrency = [1]
ready_timeout_s = 60
request_timeout_s = 30
[oracle]
platform = "cpu"
"""
TOKEN_MS = 30.0
"""Six tokens in one read have no decode rate: the client would have to be late by five of these."""


@pytest.fixture
def sweep(tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GATE_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setattr(flow, "preflight", lambda _plan, _out: ())
    recipe = tmp_path / "fakes.toml"
    recipe.write_text(RECIPE.format(checkpoint=tiny_checkpoint), encoding="utf-8")

    def run(candidate: str, oracle: str, pp: str = "20,40", tg: str = "5", depth: str = "0,30") -> tuple[int, Path]:
        asked = Asked(recipe=str(recipe), candidate=candidate, oracle=oracle, coin="candidate", port=free_port())
        code = flow.run(asked, points(pp, tg, depth), 2, tmp_path / "out", Ui())
        return code, next((tmp_path / "out").glob("*/sweep/*"))

    return run


def read(folder: Path) -> tuple[SweepPlan, SweepReport, tuple[RequestRow, ...]]:
    return (
        SweepPlan.model_validate_json((folder / "sweep-plan.json").read_bytes()),
        SweepReport.model_validate_json((folder / "sweep.json").read_bytes()),
        parquet.read(RequestRow, folder / "requests.parquet"),
    )


def test_both_arms_in_turns_with_the_same_prompts(sweep: Any) -> None:
    with FakeServer(preset("good", token_ms=TOKEN_MS)) as ours, FakeServer(preset("good", token_ms=TOKEN_MS)) as theirs:
        theirs.started_at = ours.started_at  # to the millisecond, as happened once: each is still warmed up
        code, folder = sweep(ours.url, theirs.url)
        sent = [[tuple(body["prompt"]) for body in server.requests] for server in (ours, theirs)]
        asked = [body["max_tokens"] for body in ours.requests]
    plan, made, rows = read(folder)
    assert (code, made.complete) == (0, True)
    assert [cell.name for cell in made.cells] == ["pp20", "pp40", "tg5", "tg5 @ d30"]
    assert [one.leg.arm for one in plan.legs[:4]] == ["candidate", "oracle"] * 2
    assert [one.leg.arm for one in plan.legs[8:12]] == ["oracle", "candidate"] * 2
    measured = [{row.prompt_sha256 for row in rows if row.arm == arm} for arm in ("candidate", "oracle")]
    assert measured[0] == measured[1]
    assert len(measured[0]) == 4 * 2
    # Each point is warmed up on each server with a prompt of its own, and with another where its start was not read.
    assert min(len(set(prompts)) for prompts in sent) >= 4 * 3
    assert [row.expected_prompt_tokens for row in rows[:8:2]] == [20, 40, 8, 30]
    assert set(asked) == {1, 6}
    assert {path.name for path in folder.iterdir()} >= {"sweep.md", "prefill.svg", "decode.svg", "sweep.json"}


def test_the_candidate_alone_starts_no_other(sweep: Any) -> None:
    command = f"{sys.executable} -m gate.arm.fake --port {{port}} --preset good"
    code, folder = sweep(command, "none", pp="20", tg="")
    plan, made, rows = read(folder)
    assert code == 0
    assert (plan.arms, plan.oracle, made.cells[0].ratio) == (("candidate",), None, None)
    assert {row.arm for row in rows} == {"candidate"}
    assert [path.name for path in (folder / "logs").glob("*.log")] == ["candidate.log"]


def test_preflight_has_nothing_against_the_oracle_that_is_not_started(
    sweep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "preflight", program.check)
    with FakeServer(preset("good", token_ms=TOKEN_MS)) as ours:
        assert sweep(ours.url, "none", pp="20", tg="")[0] == 0
        with pytest.raises(PreconditionError, match="no program 'my-server' for the oracle"):
            sweep(ours.url, "my-server {port}", pp="20", tg="")
    assert len(list((tmp_path / "out").glob("*/sweep/*"))) == 1


def test_a_point_that_is_refused_has_no_value_and_the_others_have(sweep: Any) -> None:
    with (
        FakeServer(preset("good", token_ms=TOKEN_MS, output_limit=1)) as short,
        FakeServer(preset("good", token_ms=TOKEN_MS)) as theirs,
    ):
        code, folder = sweep(short.url, theirs.url, depth="0")
    _, made, _ = read(folder)
    means = {cell.name: [series.mean is not None for series in cell.series] for cell in made.cells}
    assert means == {"pp20": [True, True], "pp40": [True, True], "tg5": [False, True]}
    assert code == 3


def test_the_context_is_raised_to_what_is_asked_for_and_it_is_said(
    sweep: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(preset("good", token_ms=TOKEN_MS)) as ours:
        _, folder = sweep(ours.url, "none", pp="500,20", tg="")
    plan, made, _ = read(folder)
    assert plan.recipe.max_model_len == 501
    said = "max_model_len is raised from the recipe's 64 to 501; pp500 needs it"
    assert [finding.code for finding in made.findings] == ["context-raised"]
    assert f"note: {said}" in capsys.readouterr().err
    assert said in (folder / "sweep.md").read_text(encoding="utf-8")


def test_a_context_that_suffices_is_left_as_it_is(sweep: Any) -> None:
    with FakeServer(preset("good", token_ms=TOKEN_MS)) as ours:
        _, folder = sweep(ours.url, "none", pp="63", tg="")
    plan, made, _ = read(folder)
    assert (plan.recipe.max_model_len, made.findings) == (64, ())


def test_more_than_an_attached_server_serves_is_one_line(sweep: Any) -> None:
    with FakeServer(preset("good", token_ms=TOKEN_MS, max_model_len=64)) as ours, pytest.raises(UsageError) as caught:
        sweep(ours.url, "none", pp="20,64")
    assert "pp64 needs a context of 65 tokens; expected at most 64, what the candidate at" in str(caught.value)


def test_more_than_the_model_has_is_one_line_before_anything_starts(
    sweep: Any, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    config = json.loads((tiny_checkpoint / "config.json").read_text())
    longest = config.get("text_config", config)["max_position_embeddings"]
    with pytest.raises(UsageError, match=rf"pp{longest} needs a context of {longest + 1} tokens; expected at most"):
        sweep("http://127.0.0.1:9", "none", pp=str(longest), tg="")
    assert not list(tmp_path.glob("out/*/sweep"))


def test_a_server_that_answers_nothing_leaves_a_report_that_says_so(sweep: Any) -> None:
    with FakeServer(preset("http-500")) as broken, FakeServer(preset("good", token_ms=TOKEN_MS)) as theirs:
        code, folder = sweep(broken.url, theirs.url, pp="20", tg="")
    _, made, _ = read(folder)
    assert code == 3
    assert "HTTP 500" in made.cells[0].series[0].faults[0]
    assert "HTTP 500" in (folder / "sweep.md").read_text()


def test_after_a_warm_up_that_failed_nothing_is_timed_and_the_next_repetition_warms_up_again(sweep: Any) -> None:
    with FakeServer(preset("error-event", token_ms=TOKEN_MS, fault_after_tokens=1, fault_count=1)) as ours:
        code, folder = sweep(ours.url, "none", pp="20", tg="")
        assert len(ours.requests) == 1 + 2
    _, made, rows = read(folder)
    assert code == 3
    assert [value is None for value in made.cells[0].series[0].values] == [True, False]
    assert str(rows[0].error).startswith("not sent, no warm-up request was answered: ")
    assert "not sent, no warm-up request was answered: " in (folder / "sweep.md").read_text()


def test_a_server_that_dies_is_started_once_more_for_the_points_that_follow(sweep: Any, tmp_path: Path) -> None:
    """It answers six requests: the warm-up and the timed one of three points."""
    script = tmp_path / "mortal.toml"
    script.write_text(f"token_ms = {TOKEN_MS}\nexit_after_requests = 6\n")
    command = f"{sys.executable} -m gate.arm.fake --port {{port}} --script {shlex.quote(str(script))}"
    code, folder = sweep(command, "none", pp="20,30,40", tg="")
    _, made, _ = read(folder)
    lacking = [sum(value is None for value in cell.series[0].values) for cell in made.cells]
    assert (code, sum(lacking)) == (3, 1)


def test_one_without_a_request_has_no_report_and_says_why(sweep: Any, tmp_path: Path) -> None:
    with FakeServer(preset("good", token_ms=TOKEN_MS)) as ours, pytest.raises(ArmError) as caught:
        sweep(ours.url, f"{sys.executable} -c raise(SystemExit(3)) {{port}}", pp="20", tg="")
    (folder,) = (tmp_path / "out").glob("*/sweep/*")
    assert not (folder / "sweep.json").exists()
    for again in (shown.report, functools.partial(shown.show, every=False)):
        with pytest.raises(
            StorageError, match=r"nothing measured: the oracle died at start .* gate sweep begins"
        ) as told:
            again(None, tmp_path / "out")
        assert str(caught.value) in str(told.value)


def test_one_that_ends_early_says_why_and_says_it_again(
    sweep: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, legs = Pair.ready, iter(range(9))

    def dies_in_the_second(pair: Pair, leg: PlannedLeg) -> Server:
        if next(legs) == 1:
            raise ArmError("the oracle died")
        return ready(pair, leg)

    monkeypatch.setattr(Pair, "ready", dies_in_the_second)
    good = preset("good", token_ms=TOKEN_MS)
    with FakeServer(good) as ours, FakeServer(good) as theirs, pytest.raises(ArmError):
        sweep(ours.url, theirs.url, pp="20", tg="")
    (folder,) = (tmp_path / "out").glob("*/sweep/*")
    said = "ended early: the oracle died"
    assert said in capsys.readouterr().out
    assert shown.report(None, tmp_path / "out") == 3
    assert said in capsys.readouterr().out
    assert f"* {said}" in (folder / "sweep.md").read_text()


def test_it_is_listed_shown_and_derived_again_as_it_was(
    sweep: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(preset("good", token_ms=TOKEN_MS)) as ours, FakeServer(preset("good", token_ms=TOKEN_MS)) as theirs:
        code, folder = sweep(ours.url, theirs.url, pp="20", tg="", depth="0")
    printed = capsys.readouterr().out
    (entry,) = runs.entries(tmp_path / "out")
    assert (entry.kind, entry.legs, entry.planned, entry.complete, entry.recipe) == ("sweep", 4, 4, True, "fakes")
    shown.show(None, tmp_path / "out", every=False)
    assert capsys.readouterr().out == printed
    before = (folder / "sweep.json").read_bytes()
    (folder / "sweep.json").unlink()
    assert shown.report(folder.name, tmp_path / "out") == code
    assert (folder / "sweep.json").read_bytes() == before
    exit_code_is_kept_without_a_reader(folder.name, code, tmp_path / "out")
    changed_reports_are_refused(folder, "sweep.json", tmp_path / "out")
    lost_seals_are_told(folder, "sweep.json", tmp_path / "out", capsys)
    changed_records_are_refused(folder, tmp_path / "out")
