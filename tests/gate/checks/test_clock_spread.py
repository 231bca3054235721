"""clock-spread: one clock for an arm."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

CLOCK = "gpu0.sm_clock_mhz"


@pytest.mark.parametrize(("low", "void"), [(1881.0, False), (1880.0, True)], ids=["5 %", "beyond"])
def test_five_percent_within_a_leg_is_the_limit(build: Any, found: Any, low: float, void: bool) -> None:
    """1980 − 1881 is 5 % of the median, 1980."""
    run = build.run()
    findings = found(build.alter_telemetry(run, build.leg_id(run), CLOCK, lambda _: low, 0.5, 0.52))
    assert [(f.code, f.arm, f.concurrency) for f in findings] == ([("clock-spread", "candidate", 2)] if void else [])


def test_a_clock_that_differs_between_legs_differs_too(build: Any, found: Any) -> None:
    run = build.run()
    moved = build.alter_telemetry(run, build.leg_id(run, "oracle", 1, 2), CLOCK, lambda _: 2190.0)
    (finding,) = found(moved, "clock-spread")
    assert finding.arm == "oracle"
    assert finding.beyond == pytest.approx(210 / 1980 / 0.05)
    assert "gpu0's SM clock ran from 1980 to 2190 MHz in the oracle's legs at c1, 10.6 % apart" in finding.message


def test_clocks_at_rest_do_not_count(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    resting = build.alter_telemetry(run, leg, CLOCK, lambda _: 345.0, 0.9, 1.0)
    assert found(resting, "clock-spread")
    assert found(build.alter_telemetry(resting, leg, "gpu0.utilization_percent", lambda _: 0.0, 0.9, 1.0)) == []


def test_a_gpu_without_utilisation_is_taken_to_work(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    blind = build.alter_telemetry(run, leg, "gpu0.utilization_percent", None)
    assert found(blind) == []
    assert found(build.alter_telemetry(blind, leg, CLOCK, lambda _: 345.0, 0.9, 1.0), "clock-spread")


def test_an_arm_without_clocks_has_no_spread(build: Any, found: Any) -> None:
    run = build.run()
    for leg in run.legs:
        run = build.alter_telemetry(run, leg.leg_id, CLOCK, None)
    assert {finding.code for finding in found(run)} == {"clocks-unsampled"}


def test_clocks_outside_the_load_do_not_count(build: Any, found: Any) -> None:
    run = build.run()
    row = next(leg for leg in run.legs if leg.leg_id == build.leg_id(run))
    sample = next(r for r in run.telemetry if (r.leg_id, r.name) == (row.leg_id, CLOCK))
    outside = tuple(
        sample.model_copy(update={"t_ns": t_ns, "value": 345.0}) for t_ns in (row.start_ns - 1, row.end_ns + 1)
    )
    assert found(dataclasses.replace(run, telemetry=(*run.telemetry, *outside))) == []
    for t_ns in (row.start_ns, row.end_ns):
        at_the_end = outside[0].model_copy(update={"t_ns": t_ns})
        assert found(dataclasses.replace(run, telemetry=(*run.telemetry, at_the_end)), "clock-spread")
