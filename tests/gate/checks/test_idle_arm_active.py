"""idle-arm-active: a proxy to the oracle, and a server that spins while the other one is measured."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.evidence import Evidence
from gate.checks.idle_arm_active import idle_cores


def test_tokens_of_the_arm_that_should_rest_void_the_leg(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    (finding,) = found(build.alter_leg(run, leg, other_arm_tokens=96), "idle-arm-active")
    assert finding.leg_id == leg
    assert "counted 96 tokens" in finding.message


def test_a_spinning_arm_voids_the_leg(build: Any, found: Any) -> None:
    run = build.run()
    leg = next(leg for leg in run.legs if leg.leg_id == build.leg_id(run))
    spun_s = 0.3 * (leg.end_ns - leg.start_ns) / 1e9
    (finding,) = found(build.alter_leg(run, leg.leg_id, other_arm_cpu_s=spun_s), "idle-arm-active")
    assert "0.30 cores" in finding.message


def test_a_quarter_of_a_core_is_the_limit(build: Any, found: Any) -> None:
    run = build.run()
    leg = Evidence.of(run).legs[0]
    at, above = (build.alter_leg(run, leg.name, other_arm_cpu_s=cores * leg.duration_s) for cores in (0.25, 0.26))
    assert found(at, "idle-arm-active") == []
    assert [finding.beyond for finding in found(above, "idle-arm-active")] == [pytest.approx(1.04)]


def test_a_leg_without_time_has_no_idle_cores(build: Any) -> None:
    leg = Evidence.of(build.run()).legs[0]
    still = leg.row.model_copy(update={"end_ns": leg.row.start_ns, "other_arm_cpu_s": 1.0})
    assert idle_cores(dataclasses.replace(leg, row=still)) is None


@pytest.mark.parametrize("changes", [{"other_arm_tokens": None}, {"other_arm_tokens": 0, "other_arm_cpu_s": 0.0}])
def test_an_arm_that_rests_or_is_not_there_is_silent(build: Any, found: Any, changes: dict[str, Any]) -> None:
    run = build.run()
    if changes["other_arm_tokens"] is not None:
        run = build.alter_leg(run, build.leg_id(run), **changes)
    assert found(run, "idle-arm-active") == []
