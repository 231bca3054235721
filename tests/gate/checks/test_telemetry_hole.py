"""telemetry-hole: what nobody looked at is no evidence."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.evidence import Evidence
from gate.checks.readings import Sample
from gate.checks.telemetry_hole import check, longest_s
from gate.judge import judge
from gate.observe.rows import Verdict

LONG = {"ttft_ms": 5000.0}
"""Two requests of 5.07 s at c1: a leg of 10.14 s."""


@pytest.mark.parametrize("name", ["host_available_bytes", "gpu0.sm_clock_mhz"])
def test_a_hole_of_more_than_two_seconds_voids_the_leg(build: Any, found: Any, name: str) -> None:
    run = build.run(**LONG)
    leg = build.leg_id(run, "oracle", 1, 1)
    assert found(build.alter_telemetry(run, leg, name, None, 0.42, 0.58)) == []
    (finding,) = found(build.alter_telemetry(run, leg, name, None, 0.38, 0.6))
    assert (finding.code, finding.leg_id) == ("telemetry-hole", leg)
    assert f"no {name} for 2." in finding.message
    assert finding.beyond == pytest.approx(10 / 39 * 10.14 / 2, rel=0.01)


def test_samples_without_a_value_are_no_samples(build: Any, found: Any) -> None:
    run = build.run(**LONG)
    leg = build.leg_id(run, "oracle", 1, 1)
    lost = build.alter_telemetry(run, leg, "gpu0.sm_clock_mhz", lambda _: None, 0.3, 0.7)
    assert {f.code for f in found(lost)} == {"telemetry-hole"}


@pytest.mark.parametrize(("since", "until"), [(0.0, 0.3), (0.7, 1.0)], ids=["started late", "ended early"])
def test_both_ends_of_the_load_must_be_covered(build: Any, found: Any, since: float, until: float) -> None:
    run = build.run(**LONG)
    leg = build.leg_id(run, "candidate", 1, 1)
    (finding,) = found(build.alter_telemetry(run, leg, "host_available_bytes", None, since, until))
    assert finding.code == "telemetry-hole"


@pytest.mark.parametrize("legs_away", [-2, 2], ids=["before", "after"])
def test_samples_of_another_time_do_not_count(build: Any, found: Any, legs_away: int) -> None:
    run = build.run(**LONG)
    leg = next(row for row in run.legs if row.leg_id == build.leg_id(run, "candidate", 1, 1))
    away = legs_away * (leg.end_ns - leg.start_ns)
    moved = tuple(
        row.model_copy(update={"t_ns": row.t_ns + away}) if row.leg_id == leg.leg_id else row for row in run.telemetry
    )
    codes = {(f.code, f.leg_id) for f in found(dataclasses.replace(run, telemetry=moved))}
    assert codes == {("telemetry-hole", leg.leg_id)}


def test_every_gpu_of_the_run_must_be_covered(build: Any, found: Any) -> None:
    run = build.run(**LONG)
    one = next(row for row in run.telemetry if row.name == "gpu0.sm_clock_mhz")
    second = one.model_copy(update={"name": "gpu1.sm_clock_mhz"})
    findings = found(dataclasses.replace(run, telemetry=(*run.telemetry, second)), "telemetry-hole")
    assert len(findings) == len(run.legs)
    assert all(f.message.startswith("no gpu1.sm_clock_mhz for") for f in findings)


def test_a_leg_shorter_than_the_limit_needs_no_sample(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run, "candidate", 1, 1)
    assert found(build.alter_telemetry(run, leg, "host_available_bytes", None)) == []


def test_a_run_without_a_gpu_needs_no_clock(build: Any, found: Any) -> None:
    run = build.run(gpu=False, **LONG)
    hosts = tuple(row for row in run.telemetry if row.source == "psutil")
    assert found(dataclasses.replace(run, telemetry=hosts), "telemetry-hole") == []
    blind = found(dataclasses.replace(build.run(**LONG), telemetry=hosts), "telemetry-hole")
    assert {f.message.split(" for ")[0] for f in blind} == {"no gpu0.sm_clock_mhz"}


def test_exactly_the_limit_is_allowed(build: Any) -> None:
    run = build.run(ttft_ms=2000.0, tpot_ms=0.0, workload={"requests_per_stream": 1})
    (leg, *_) = Evidence.of(run).legs
    assert longest_s(leg, []) == 2.0
    assert longest_s(leg, [Sample(leg.row.start_ns + 500_000_000, 1.0)]) == 1.5
    assert list(check(Evidence.of(dataclasses.replace(run, telemetry=())))) == []


def test_a_peak_of_memory_may_lie_in_the_hole(build: Any) -> None:
    """Bad times alone leave an arm's own memory as it was measured."""
    run = build.run(**LONG)
    for leg in run.legs:
        run = build.alter_leg(run, leg.leg_id, gpu_peak_bytes=2**30)
    leg = build.leg_id(run, "oracle", 1, 1)
    holed = build.alter_telemetry(run, leg, "host_available_bytes", None, 0.3, 0.7)
    slept = build.alter_leg(run, leg, suspended_ms=1e6)
    for broken, code, void in ((holed, "telemetry-hole", True), (slept, "machine-suspended", False)):
        cells = {(cell.axis, cell.concurrency): cell for cell in judge(broken).cells}
        assert [reason.code for reason in cells["output_throughput", 1].reasons] == [code]
        assert (cells["peak_gpu_bytes", 1].verdict is Verdict.VOID) == void
        assert cells["peak_gpu_bytes", 2].verdict is not Verdict.VOID
