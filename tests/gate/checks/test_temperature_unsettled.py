"""temperature-unsettled: an arm's legs on a GPU that is as warm each time."""

from __future__ import annotations

from typing import Any

import pytest

TEMPERATURE = "gpu0.temperature_c"


@pytest.mark.parametrize(("celsius", "void"), [(65.0, False), (66.0, True), (35.0, False), (34.0, True)])
def test_fifteen_degrees_are_the_limit(build: Any, found: Any, celsius: float, void: bool) -> None:
    run = build.run()
    findings = found(build.alter_telemetry(run, build.leg_id(run), TEMPERATURE, lambda _: celsius))
    codes = [(f.code, f.arm, f.concurrency) for f in findings]
    assert codes == ([("temperature-unsettled", "candidate", 2)] if void else [])
    assert [f.beyond for f in findings] == ([pytest.approx(16 / 15)] if void else [])


def test_the_mean_of_a_leg_counts(build: Any, found: Any) -> None:
    run = build.run()
    assert found(build.alter_telemetry(run, build.leg_id(run), TEMPERATURE, lambda _: 70.0, 0.9, 1.0)) == []


def test_the_message_lists_the_legs(build: Any, found: Any) -> None:
    run = build.run()
    cold = build.alter_telemetry(run, build.leg_id(run, "oracle", 1, 0), TEMPERATURE, lambda _: 30.0)
    assert "gpu0 was at 30, 50, 50 °C in the oracle's legs at c1, 20 apart" in found(cold)[0].message


def test_one_arm_may_be_hotter(build: Any, found: Any) -> None:
    run = build.run()
    for leg in [leg for leg in run.legs if leg.arm == "oracle"]:
        run = build.alter_telemetry(run, leg.leg_id, TEMPERATURE, lambda _: 80.0)
    assert found(run) == []


def test_legs_without_a_reading_are_left_out(build: Any, found: Any) -> None:
    run = build.run()
    assert found(build.alter_telemetry(run, build.leg_id(run), TEMPERATURE, None)) == []
    for leg in run.legs:
        run = build.alter_telemetry(run, leg.leg_id, TEMPERATURE, None)
    assert found(run) == []
