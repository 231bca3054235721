"""One leg against a scripted server: what is sent, what is read back, what is on disk afterwards."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gate import recipe as recipes
from gate.arm.fake import FakeServer
from gate.arm.fake_script import Script, preset
from gate.arm.url import Attached
from gate.leg import run_leg
from gate.observe import server, store
from gate.observe.rows import Arm, LegRow
from gate.observe.rundata import RunData
from gate.plan import ArmPlan, Plan, Vocabulary, leg_prompts, make_plan


def plan_for(url: str, timeout_s: float = 30.0, **workload: Any) -> Plan:
    def arm(name: Arm) -> ArmPlan:
        return ArmPlan(
            arm=name, kind="url", argv=None, env={}, url=url, model="", checkpoint="m", checkpoint_digest=None
        )

    recipe = recipes.parse(
        {
            "schema_version": 1,
            "name": "small",
            "gpu": False,
            "checkpoint": {"path": "m"},
            "workload": {"prompt_tokens": 12, "output_tokens": 6} | workload,
            "protocol": {"concurrency": [2], "repetitions": 1, "request_timeout_s": timeout_s},
        },
        "t",
    )
    return make_plan(
        recipe,
        coin="candidate",
        seed=0,
        candidate=arm("candidate"),
        oracle=arm("oracle"),
        vocabulary=Vocabulary(size=500),
    )


Measure = Callable[..., tuple[LegRow, RunData, FakeServer]]


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    def run(
        script: Script, held: Callable[[], bool] = lambda: True, **workload: Any
    ) -> tuple[LegRow, RunData, FakeServer]:
        with FakeServer(script) as fake:
            plan = plan_for(fake.url, **workload)
            place = store.Store(tmp_path / "run")
            place.create(plan, store.RunFile(run_id="r", host="h", started_at="2026-01-01T00:00:00Z"))
            row, _ = run_leg(plan, plan.legs[0], Attached(plan.candidate), store=place, lock_held=held)
        return row, store.read_run(place.folder), fake

    return run


def test_warm_up_then_the_planned_prompts_to_the_one_model_served(measure: Measure) -> None:
    row, data, fake = measure(preset("instant", model="the-only"))
    leg = data.plan.legs[0]
    sent = [tuple(body["prompt"]) for body in fake.requests]
    assert set(sent[:2]) == {prompt.token_ids for prompt in leg_prompts(data.plan, leg, "warmup")}
    assert set(sent[2:]) == {prompt.token_ids for prompt in leg_prompts(data.plan, leg, "timed")}
    assert {body["model"] for body in fake.requests} == {"the-only"}
    assert (row.requests, row.failed) == (4, 0)


def test_records_on_disk_are_the_leg(measure: Measure) -> None:
    row, data, fake = measure(preset("instant"))
    assert data.legs == (row,)
    assert [request.index for request in data.requests] == [0, 1, 2, 3]
    assert {request.completion_tokens for request in data.requests} == {6}
    assert row.identity_before == row.identity_after == data.identities[0].digest
    assert row.server_start_id == row.server_start_id_after == f"attached@{fake.started_at:.3f}"
    assert row.start_ns <= min(request.sent_ns for request in data.requests)
    assert (row.prefix_cache_hit_tokens, row.preemptions) == (0, 0)
    assert (row.server_pid, row.server_peak_rss_bytes, row.host_load_foreign_cpu_s) == (None, None, None)
    assert {sample.leg_id for sample in data.telemetry} == {row.leg_id}
    assert row.client_stamps == ("kernel" if sys.platform == "linux" else "loop")


def test_what_happened_to_the_host_meanwhile_is_in_the_row(measure: Measure) -> None:
    row, _, _ = measure(preset("instant"))
    assert row.boot_id
    assert row.host_available_before_bytes is not None
    assert row.suspended_ms is not None
    assert row.wall_step_ms is not None
    assert (row.gpu_used_before_bytes, row.gpu_foreign_processes) == (None, None)
    assert (row.server_log_errors, row.server_log_first_error) == (None, None)  # attached: its log is not ours


def test_errors_in_a_started_servers_log_are_counted(tmp_path: Path) -> None:
    class Started(Attached):
        pid = 1

        @property
        def start_id(self) -> str:
            with (place.logs / "candidate.log").open("a") as log:
                log.write("ERROR 11-29 lost a worker\n")
            return "started"

    with FakeServer(preset("instant")) as fake:
        plan = plan_for(fake.url)
        place = store.Store(tmp_path / "run")
        place.create(plan, store.RunFile(run_id="r", host="h", started_at="2026-01-01T00:00:00Z"))
        (place.logs / "candidate.log").write_text("ERROR of an earlier leg\n")
        row, _ = run_leg(plan, plan.legs[0], Started(plan.candidate), store=place, lock_held=lambda: True)
    assert row.server_log_errors == 1
    assert row.server_log_first_error == "ERROR 11-29 lost a worker"


def test_prefix_hits_of_the_leg_alone_are_counted(measure: Measure) -> None:
    row, _, fake = measure(preset("prefix-cache"))
    assert row.prefix_cache_hit_tokens is not None
    assert 0 < row.prefix_cache_hit_tokens < fake.hits


def test_change_of_identity_in_the_leg_shows(measure: Measure) -> None:
    row, data, _ = measure(preset("changes-version"))
    assert row.identity_before != row.identity_after
    assert len(data.identities) == 2


def test_lock_lost_on_the_way_shows(measure: Measure) -> None:
    answers = iter([True, False])
    assert not measure(preset("instant"), held=lambda: next(answers))[0].lock_held


@pytest.mark.parametrize("arrival", ["poisson", "constant"])
def test_open_loop_is_paced_and_its_warm_up_is_not(measure: Measure, arrival: str) -> None:
    _, data, _ = measure(preset("instant"), arrival=arrival, rate_per_stream=200.0)
    due = [request.scheduled_ns for request in data.requests]
    assert None not in due
    assert due == sorted(due, key=lambda t: t or 0)
    if arrival == "constant":
        steps = {round(((b or 0) - (a or 0)) / 1e6, 3) for a, b in itertools.pairwise(due)}
        assert steps == {2.5}


def test_a_leg_sends_at_least_its_minimum_after_the_same_warm_up(measure: Measure) -> None:
    row, data, fake = measure(preset("instant"), min_requests_per_leg=5)
    assert (row.requests, row.failed, len(fake.requests)) == (6, 0, 2 + 6)
    assert [request.index for request in data.requests] == list(range(6))


def test_a_staggered_start_warms_up_in_the_same_load(measure: Measure) -> None:
    """Two streams warm up with 8 × 3 / 4 = 6 and 8 × 5 / 4 = 10 tokens; records hold the timed requests alone."""
    row, data, fake = measure(preset("instant"), start="staggered", output_tokens=8)
    leg = data.plan.legs[0]
    asked = {tuple(body["prompt"]): body["max_tokens"] for body in fake.requests}
    warm, timed = ([p.token_ids for p in leg_prompts(data.plan, leg, phase)] for phase in ("warmup", "timed"))
    assert asked == dict(zip((*warm, *timed), (6, 10, 8, 8, 8, 8), strict=True))
    assert (row.requests, row.failed, len(fake.requests)) == (4, 0, 2 + 4)
    assert [(request.index, request.expected_output_tokens) for request in data.requests] == [(k, 8) for k in range(4)]
    assert row.start_ns == min(request.sent_ns for request in data.requests)


def test_a_staggered_start_sends_a_silent_server_no_more_than_the_warm_up(measure: Measure) -> None:
    row, data, fake = measure(preset("no-answer"), timeout_s=1.0, start="staggered", output_tokens=8)
    assert (row.failed, len(fake.requests)) == (4, 2)
    assert (row.client_cpu_s, row.client_events) == (None, None)  # of microseconds: no share of a core
    assert {request.error for request in data.requests} == {
        "not sent, no warm-up request was answered: no complete response within 1 s"
    }


@pytest.mark.parametrize("how", [{}, {"start": "staggered", "output_tokens": 8}], ids=["together", "staggered"])
def test_a_warm_up_request_that_failed_beside_another_is_recorded_with_its_reason(
    measure: Measure, how: dict[str, Any]
) -> None:
    """A stream that breaks off after its status was 200, too."""
    row, data, fake = measure(preset("error-event", fault_count=1), **how)
    assert (row.failed, len(fake.requests)) == (0, 2 + 4)
    assert row.warmup_failed == 1
    assert row.warmup_first_error is not None
    assert "scripted failure" in row.warmup_first_error
    assert data.legs == (row,)


@pytest.mark.parametrize(
    ("name", "how", "failed"),
    [
        ("instant", {}, 0),
        ("instant", {"start": "staggered", "output_tokens": 8}, 0),
        ("http-500", {"warmup_per_stream": 0}, 0),
        ("http-500", {}, 2),
        ("http-500", {"start": "staggered", "output_tokens": 8}, 2),
    ],
)
def test_failed_warm_up_requests_are_counted(measure: Measure, name: str, how: dict[str, Any], failed: int) -> None:
    row, _, _ = measure(preset(name), **how)
    assert row.warmup_failed == failed
    assert (row.warmup_first_error is None) == (failed == 0)


def test_no_warm_up_means_none(measure: Measure) -> None:
    _, _, fake = measure(preset("instant"), warmup_per_stream=0)
    assert len(fake.requests) == 4


def test_silent_server_is_recorded_and_not_sent_the_rest(measure: Measure) -> None:
    row, data, fake = measure(preset("no-answer"), timeout_s=1.0)
    assert (row.failed, len(fake.requests)) == (4, 2)
    assert (row.client_cpu_s, row.client_events) == (None, None)
    assert {request.error for request in data.requests} == {
        "not sent, no warm-up request was answered: " + str(data.requests[0].error).split(": ", 1)[1]
    }
    assert all(request.end_ns is None and request.first_token_ns is None for request in data.requests)


def test_absent_server_leaves_failed_requests_and_no_identity(tmp_path: Path) -> None:
    plan = plan_for("http://127.0.0.1:9")
    place = store.Store(tmp_path / "run")
    place.create(plan, store.RunFile(run_id="r", host="h", started_at="2026-01-01T00:00:00Z"))
    row, error = run_leg(plan, plan.legs[0], Attached(plan.candidate), store=place, lock_held=lambda: True)
    assert row.failed == row.requests == 4
    assert row.identity_before == row.identity_after == server.UNREACHABLE
    assert error is not None
    assert "cannot connect" in error
    assert store.read_run(place.folder).identities == ()
