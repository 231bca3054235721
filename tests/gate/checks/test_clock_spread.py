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


MASK = "gpu0.throttle_mask"


def under_a_cap(build: Any, run: Any, leg_id: str, mhz: float, until: float = 0.5) -> Any:
    run = build.alter_telemetry(run, leg_id, MASK, lambda _: 4.0, 0.0, until)
    return build.alter_telemetry(run, leg_id, CLOCK, lambda _: mhz, 0.0, until)


def prefill(build: Any, run: Any, mhz: float = 1600.0) -> Any:
    for leg in run.legs:
        run = under_a_cap(build, run, leg.leg_id, mhz)
    return run


def test_what_a_cap_explains_is_no_spread(build: Any, found: Any) -> None:
    assert found(prefill(build, build.run())) == []


def test_without_reasons_the_same_clocks_are_void(build: Any, found: Any) -> None:
    run = prefill(build, build.run())
    for leg in run.legs:
        run = build.alter_telemetry(run, leg.leg_id, MASK, None)
    assert {(f.code, f.arm, f.concurrency) for f in found(run)} == {
        ("clock-spread", arm, concurrency) for arm in ("candidate", "oracle") for concurrency in (1, 2)
    }


def test_one_repetition_cannot_tell_a_ramp_from_a_load(build: Any, found: Any) -> None:
    findings = found(prefill(build, build.run(protocol={"repetitions": 1})), "clock-spread")
    assert len(findings) == 4
    assert (
        "21.2 % apart (power caps explain nothing: the candidate has no second leg to hold its clock against)"
        in findings[0].message
    )


@pytest.mark.parametrize(("low", "void"), [(1881.0, False), (1880.0, True)], ids=["5 %", "beyond"])
def test_outside_the_cap_the_limit_is_what_it_was(build: Any, found: Any, low: float, void: bool) -> None:
    run = prefill(build, build.run())
    findings = found(build.alter_telemetry(run, build.leg_id(run), CLOCK, lambda _: low, 0.89, 0.9))
    assert [(f.code, f.arm, f.concurrency) for f in findings] == ([("clock-spread", "candidate", 2)] if void else [])
    assert [f.message.partition(" ran ")[0] for f in findings] == ["gpu0's SM clock outside its power limit"] * void


@pytest.mark.parametrize(("first", "void"), [(1881.0, False), (1880.0, True)], ids=["5 %", "beyond"])
def test_a_ramp_under_a_cap_shows_between_the_legs(build: Any, found: Any, first: float, void: bool) -> None:
    run = build.run()
    for repetition, mhz in enumerate((first, 1980.0, 1980.0)):
        run = under_a_cap(build, run, build.leg_id(run, "oracle", 1, repetition), mhz, 1.0)
    findings = found(run)
    assert [(f.code, f.arm, f.concurrency) for f in findings] == ([("clock-spread", "oracle", 1)] if void else [])
    assert all(
        "gpu0's mean SM clock by leg ran from 1880 to 1980 MHz in the oracle's legs" in f.message for f in findings
    )
    assert all(f.beyond == pytest.approx(100 / 1980 / 0.05) for f in findings)


def test_a_leg_whose_clock_was_not_read_has_no_mean(build: Any, found: Any) -> None:
    run = build.run()
    for repetition, mhz in enumerate((1500.0, 1700.0, 1980.0)):
        run = under_a_cap(build, run, build.leg_id(run, "oracle", 1, repetition), mhz, 1.0)
    (finding,) = found(build.alter_telemetry(run, build.leg_id(run, "oracle", 1, 0), CLOCK, None), "clock-spread")
    assert "ran from 1700 to 1980 MHz in the oracle's legs at c1" in finding.message
