"""Which clocks a power cap explains, and when it explains none."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.evidence import Evidence
from gate.checks.power_cap import Clocks, clocks, under_cap
from gate.checks.readings import readings
from gate.observe.gpu import at_power_limit

CLOCK, MASK, LIMIT = "gpu0.sm_clock_mhz", "gpu0.throttle_mask", "gpu0.power_limit_w"
CAP = 4.0
STEP = 1 / 39
"""Between two of the 40 samples of a leg, as a share of it."""


def at(run: Any, concurrency: int = 2) -> Clocks:
    evidence = Evidence.of(run)
    return clocks(evidence, readings(evidence), concurrency, "gpu0")


def every_leg(build: Any, run: Any, name: str, value: float | None, since: float = 0.0, until: float = 1.0) -> Any:
    change = None if value is None else lambda _: value
    for leg in run.legs:
        run = build.alter_telemetry(run, leg.leg_id, name, change, since, until)
    return run


def one_sample(build: Any, run: Any, k: int, mask: float | None) -> Any:
    change = None if mask is None else lambda _: mask
    return build.alter_telemetry(run, build.leg_id(run), MASK, change, (k - 0.2) * STEP, (k + 0.2) * STEP)


def capped(run: Any, build: Any) -> list[int]:
    """Indices of the samples of one leg that are under a cap."""
    evidence = Evidence.of(run)
    leg = next(leg for leg in evidence.legs if leg.name == build.leg_id(run))
    stamps = sorted(row.t_ns for row in run.telemetry if (row.leg_id, row.name) == (leg.name, CLOCK))
    return sorted(stamps.index(t_ns) for t_ns in under_cap(readings(evidence), leg, "gpu0"))


@pytest.mark.parametrize(("mask", "cap"), [(0, False), (4, True), (5, True), (1, False), (2, False), (8, False)])
def test_the_bit_is_that_of_the_software_power_cap(mask: int, cap: bool) -> None:
    assert at_power_limit(mask) is cap


@pytest.mark.parametrize(("k", "expected"), [(0, [0, 1]), (7, [6, 7, 8]), (39, [38, 39])])
def test_a_sample_beside_a_capped_one_is_capped(build: Any, k: int, expected: list[int]) -> None:
    assert capped(one_sample(build, build.run(), k, CAP), build) == expected


def test_a_sample_without_a_reason_is_under_no_cap(build: Any) -> None:
    assert capped(one_sample(build, one_sample(build, build.run(), 7, CAP), 8, None), build) == [6, 7, 9]


def test_capped_samples_are_left_out_and_counted(build: Any) -> None:
    run = every_leg(build, build.run(), MASK, CAP, 0.0, 9.5 * STEP)
    found = at(every_leg(build, run, CLOCK, 1700.0, 0.0, 9.5 * STEP))
    assert (found.doubt, found.explained, found.capped) == (None, True, {"candidate": 33, "oracle": 33})
    assert found.limits_w == (700.0,)
    assert {leg.free for leg in found.legs} == {(1980.0,) * 29}
    assert {leg.mean for leg in found.legs} == {(10 * 1700 + 30 * 1980) / 40}
    assert (len(found.busy("oracle")), len(found.free("oracle"))) == (120, 87)
    assert [leg.repetition for leg in found.of("candidate")] == [0, 1, 2]


def test_only_work_counts(build: Any) -> None:
    run = every_leg(build, build.run(), MASK, CAP, 0.0, 9.5 * STEP)
    found = at(every_leg(build, run, "gpu0.utilization_percent", 0.0, 0.0, 4.5 * STEP))
    assert found.capped == {"candidate": 18, "oracle": 18}
    assert {(len(leg.busy), len(leg.free)) for leg in found.legs} == {(35, 29)}


def test_without_a_cap_there_is_nothing_to_explain_or_to_doubt(build: Any) -> None:
    run = build.alter_telemetry(build.run(), build.leg_id(build.run()), LIMIT, lambda _: 600.0)
    found = at(run)
    assert (found.doubt, found.explained, found.why_all) == (None, False, "")
    assert found.busy("candidate") == found.free("candidate") == (1980.0,) * 120


def test_a_limit_that_moved_explains_nothing(build: Any) -> None:
    run = every_leg(build, build.run(), MASK, CAP, 0.0, 0.5)
    found = at(build.alter_telemetry(run, build.leg_id(run, "oracle"), LIMIT, lambda _: 600.0, 0.9))
    assert (found.explained, found.limits_w) == (False, (600.0, 700.0))
    assert found.why_all == " (power caps explain nothing: the power limit moved from 600 to 700 W)"
    assert found.free("candidate") == found.busy("candidate")
    assert at(build.alter_telemetry(run, build.leg_id(run, "oracle", 1), LIMIT, lambda _: 600.0, 0.9)).explained


@pytest.mark.parametrize("arm", ["candidate", "oracle"])
def test_a_cap_needs_a_second_leg_of_the_arm(build: Any, arm: str) -> None:
    run = every_leg(build, build.run(), MASK, CAP, 0.0, 0.5)
    two = build.without_legs(run, build.leg_id(run, arm, 2, 0))
    assert at(two).explained
    assert at(build.without_legs(two, build.leg_id(run, arm, 2, 1))).doubt == (
        f"the {arm} has no second leg to hold its clock against"
    )


@pytest.mark.parametrize(("last_capped", "least"), [(35, 3), (36, 2)])
def test_an_unknown_limit_needs_three_free_samples_of_each_leg(build: Any, last_capped: int, least: int) -> None:
    run = every_leg(build, build.run(), MASK, CAP, 0.0, 0.3)
    run = build.alter_telemetry(run, build.leg_id(run), MASK, lambda _: CAP, 0.0, (last_capped + 0.5) * STEP)
    assert at(run).explained
    blind = build.alter_telemetry(run, build.leg_id(run, "oracle"), LIMIT, None)
    assert at(blind).explained is (least == 3)
    assert at(blind).doubt == (
        None if least == 3 else "the power limit is not known, and a leg has 2 samples without a cap, fewer than 3"
    )


def test_a_leg_without_telemetry_leaves_the_limit_unknown(build: Any) -> None:
    run = every_leg(build, build.run(), MASK, CAP, 0.0, 0.5)
    rows = tuple(row for row in run.telemetry if row.leg_id != build.leg_id(run))
    found = at(dataclasses.replace(run, telemetry=rows))
    assert found.doubt == "the power limit is not known, and a leg has 0 samples without a cap, fewer than 3"
    assert [leg.mean for leg in found.of("candidate")] == [1980.0, None, 1980.0]


@pytest.mark.parametrize("arm", ["candidate", "oracle"])
def test_a_cap_of_one_arm_is_explained_or_doubted_as_well(build: Any, arm: str) -> None:
    run = build.run()
    for leg in [leg for leg in run.legs if leg.arm == arm]:
        run = build.alter_telemetry(run, leg.leg_id, MASK, lambda _: CAP, 0.0, 0.5)
    assert at(run).explained
    assert at(build.alter_telemetry(run, build.leg_id(run), LIMIT, lambda _: 600.0)).doubt is not None
