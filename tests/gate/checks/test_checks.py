"""The list itself: a good run is silent, and every check has the fixed form that the docs are made of."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gate.checks import CHECKS, MEMORY_TOO_CODES, TIMING_ONLY_CODES, base, explains
from gate.judge import judge
from gate.observe.rows import Verdict
from gate.plan import PlannedLeg

FOLDER = Path(base.__file__).parent
NOT_CHECKS = {"__init__", "base", "evidence", "latencies", "power_cap", "readings"}


@pytest.mark.parametrize("tables", [{}, {"protocol": {"repetitions": 1}}, {"protocol": {"repetitions": 4}}])
@pytest.mark.parametrize("coin", ["candidate", "oracle"])
def test_a_good_run_has_no_findings(build: Any, found: Any, coin: Any, tables: Any) -> None:
    assert found(build.run(coin=coin, **tables)) == []


def test_every_file_is_in_the_list_once() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - NOT_CHECKS
    listed = [check.CODE.replace("-", "_") for check in CHECKS]
    assert sorted(listed) == sorted(files)


TOKENS_TOO = {
    "server-logged-error",
    "arms-are-one",
    "arms-not-as-planned",
    "oracle-not-pinned",
    "checkpoint-changed",
    "engine-stale",
    "reference-fallback",
    "settings-differ",
    "records-mixed",
    "weights-widened",
    "identity-changed",
    "idle-arm-active",
    "kv-dtype-differs",
    "request-set-incomplete",
    "failed-request",
    "error-after-tokens",
    "truncated-stream",
    "usage-missing",
    "prompt-length",
    "output-length",
    "delivered-concurrency",
}
"""Faults of who was measured or what was answered: they leave nothing to compare tokens of."""


def test_which_faults_spare_the_tokens_and_which_are_consequences() -> None:
    assert {check.CODE for check in CHECKS} - TIMING_ONLY_CODES == TOKENS_TOO
    assert TIMING_ONLY_CODES.isdisjoint(TOKENS_TOO)
    assert {check.CODE for check in CHECKS if check.CONSEQUENCE} == {
        "buffered-stream",
        "client-saturated",
        "clock-offset",
        "clock-spread",
        "clocks-explain",
        "clocks-unsampled",
        "cold-first-requests",
        "delivered-concurrency",
        "order-effect",
        "spread",
        "telemetry-hole",
        "temperature-unsettled",
        "warmup-unsettled",
    }


def test_which_faults_of_timing_leave_memory_in_doubt_as_well() -> None:
    assert {"oom-kill", "memory-swapped", "memory-not-returned", "telemetry-hole"} == MEMORY_TOO_CODES


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.CODE)
def test_every_check_explains_itself(check: ModuleType) -> None:
    assert check.__name__.rsplit(".", 1)[1] == check.CODE.replace("-", "_")
    lines = (check.__doc__ or "").splitlines()
    assert lines[0].endswith(".")
    assert [line for line in lines if line in base.SECTIONS] == list(base.SECTIONS)
    assert (Path(__file__).parent / f"test_{check.CODE.replace('-', '_')}.py").is_file()


def test_a_consequence_is_left_out_where_its_cause_is_known(build: Any, found: Any) -> None:
    """A slow leg spreads; when the lock was lost in it, that is said and the spread is not."""
    run = build.run(lambda leg: 0.8 if (leg.arm, leg.concurrency, leg.repetition) == ("oracle", 2, 1) else 1.0)
    assert {f.code for f in found(run)} == {"spread"}
    other = build.alter_leg(run, build.leg_id(run, "oracle", 1, 1), lock_held=False)
    assert {f.code for f in found(other)} == {"spread", "lock-lost"}
    explained = build.alter_leg(run, build.leg_id(run, "oracle", 2, 1), lock_held=False)
    assert {f.code for f in found(explained)} == {"lock-lost"}


def test_two_causes_in_one_leg_are_both_said(build: Any, found: Any) -> None:
    run = build.run()
    both = build.alter_leg(run, build.leg_id(run), lock_held=False, host_load_foreign_cpu_s=1.0)
    assert {f.code for f in found(both)} == {"lock-lost", "foreign-load"}


def test_a_late_client_on_a_busy_host_is_the_hosts_doing(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    late = build.alter_leg(run, leg, client_loop_lag_p99_ms=50.0)
    assert {f.code for f in found(late)} == {"client-saturated"}
    assert {f.code for f in found(build.alter_leg(late, leg, host_load_foreign_cpu_s=1.0))} == {"foreign-load"}


def test_a_finding_about_one_axis_explains_no_other(build: Any) -> None:
    about = build.finding(code="buffered-stream", leg_id="a", concurrency=2, axis="itl")
    assert not explains(about, build.finding(code="spread", concurrency=2, axis="tpot_median_ms"))
    assert not explains(about, build.finding(code="delivered-concurrency", leg_id="b", concurrency=2))
    whole = build.finding(code="lock-lost", leg_id="a", concurrency=2)
    assert explains(whole, build.finding(code="spread", concurrency=2, axis="tpot_median_ms"))
    assert not explains(whole, build.finding(code="spread", concurrency=4, axis="tpot_median_ms"))
    assert not explains(whole, build.finding(code="delivered-concurrency", leg_id="b", concurrency=2))


@pytest.mark.parametrize(
    ("cause", "found", "explained"),
    [
        ({}, {"leg_id": "a", "concurrency": 2, "axis": "itl_p99_ms"}, True),
        ({}, {}, True),
        ({"leg_id": "a"}, {"leg_id": "a"}, True),
        ({"leg_id": "a"}, {}, True),
        ({"leg_id": "a"}, {"leg_id": "b"}, False),
        ({"concurrency": 2}, {"concurrency": 2}, True),
        ({"concurrency": 2}, {}, False),
        ({"concurrency": 2}, {"concurrency": 4}, False),
        ({"axis": "itl"}, {"axis": "itl"}, True),
        ({"axis": "itl"}, {"axis": "itl_p99_ms"}, True),
        ({"axis": "itl"}, {"axis": "itlp"}, False),
        ({"axis": "itl"}, {}, False),
    ],
)
def test_a_cause_explains_what_it_covers(
    build: Any, cause: dict[str, Any], found: dict[str, Any], explained: bool
) -> None:
    nowhere = {"leg_id": None, "concurrency": None, "axis": None}
    why, what = build.finding(**nowhere | cause | {"code": "why"}), build.finding(**nowhere | found | {"code": "what"})
    assert explains(why, what) is explained
    assert not explains(why, why)


@pytest.mark.parametrize(
    ("cause", "found", "explained"),
    [
        # A cell that only movement covers may be decided: order-effect says more than that.
        ("cold-first-requests", {"code": "order-effect", "axis": "tpot_median_ms"}, False),
        ("cold-first-requests", {"code": "spread", "axis": "tpot_median_ms"}, True),
        ("foreign-load", {"code": "order-effect", "axis": "tpot_median_ms"}, True),
        # Bad times say nothing of an arm's own memory.
        ("cold-first-requests", {"code": "spread", "axis": "peak_host_pss_bytes"}, False),
        ("foreign-load", {"code": "spread", "axis": "peak_gpu_bytes"}, False),
        ("foreign-load", {"code": "spread", "axis": "host_drop_bytes"}, True),
        ("foreign-load", {"code": "telemetry-hole"}, False),
        ("memory-swapped", {"code": "telemetry-hole"}, True),
        ("memory-swapped", {"code": "spread", "axis": "peak_gpu_bytes"}, True),
        ("failed-request", {"code": "spread", "axis": "peak_gpu_bytes"}, True),
        # Nor of tokens.
        ("telemetry-hole", {"code": "delivered-concurrency"}, False),
        ("failed-request", {"code": "delivered-concurrency"}, True),
    ],
)
def test_a_cause_that_voids_less_explains_nothing(
    build: Any, cause: str, found: dict[str, Any], explained: bool
) -> None:
    assert explains(build.finding(code=cause), build.finding(**found)) is explained


def test_a_cold_leg_hides_no_order_effect(build: Any, found: Any, stretch: Any) -> None:
    """The arm that runs first takes twice as long; beside one cold leg that must not become a bound."""

    def speed(leg: PlannedLeg) -> float:
        began = (leg.arm == "candidate") == (leg.repetition % 2 == 0)
        return (3.0 if leg.arm == "candidate" else 1.0) / (2 if began else 1)

    run = build.run(speed, workload={"requests_per_stream": 6}, protocol={"repetitions": 4})
    cold = stretch(run, build.leg_id(run, "oracle", 2, 0), {0: 10.0, 1: 10.0})
    of_throughput = {f.code for f in found(cold) if f.concurrency == 2 and f.axis in (None, "output_throughput")}
    assert {"cold-first-requests", "order-effect"} <= of_throughput
    assert {c.verdict for c in judge(cold).cells if (c.axis, c.concurrency) == ("output_throughput", 2)} == {
        Verdict.VOID
    }


def test_bad_times_hide_no_spread_of_memory(build: Any) -> None:
    run = build.run()
    for leg in run.legs:
        run = build.alter_leg(run, leg.leg_id, server_peak_pss_bytes=10**9 * (1 + (leg.arm == "candidate") * leg.order))
    late = build.alter_leg(run, build.leg_id(run), host_load_foreign_cpu_s=1.0)
    memory = [c for c in judge(late).cells if (c.axis, c.concurrency) == ("peak_host_pss_bytes", 2)]
    assert [(c.verdict, [reason.code for reason in c.reasons]) for c in memory] == [(Verdict.VOID, ["spread"])]
