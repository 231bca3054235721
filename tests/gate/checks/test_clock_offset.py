"""clock-offset: both arms at one clock, in the median and in the mean."""

from __future__ import annotations

from typing import Any

import pytest

from gate.checks.clock_offset import offsets

CLOCK = "gpu0.sm_clock_mhz"


def clocked(build: Any, run: Any, arm: str, concurrency: int, mhz: float, since: float = 0.0) -> Any:
    for leg in [leg for leg in run.legs if (leg.arm, leg.concurrency) == (arm, concurrency)]:
        run = build.alter_telemetry(run, leg.leg_id, CLOCK, lambda _: mhz, since)
    return run


@pytest.mark.parametrize("arm", ["candidate", "oracle"])
def test_one_percent_is_the_limit_either_way(build: Any, found: Any, arm: str) -> None:
    run = build.run()
    both = clocked(build, clocked(build, run, "oracle", 2, 2000.0), "candidate", 2, 2000.0)
    assert found(clocked(build, both, arm, 2, 2020.0 if arm == "candidate" else 1981.0)) == []
    (closest, _) = found(clocked(build, both, "candidate", 2, 2021.0))
    assert closest.beyond == pytest.approx(1.05)
    findings = found(clocked(build, run, arm, 2, 1980 * 1.012))
    assert [(f.code, f.concurrency, f.arm, f.leg_id) for f in findings] == [("clock-offset", 2, None, None)] * 2
    assert f"the median of gpu0's SM clock is {'+1.2' if arm == 'candidate' else '-1.2'} %" in findings[0].message
    assert "the mean of" in findings[1].message


def test_equal_medians_are_not_enough(build: Any, found: Any) -> None:
    run = clocked(build, build.run(), "oracle", 1, 1980 * 0.96, since=0.6)
    (finding,) = found(run)
    assert finding.code == "clock-offset"
    assert "the mean of gpu0's SM clock is +1." in finding.message


def test_exactly_one_percent_is_allowed_and_nothing_is_no_offset() -> None:
    assert offsets([101.0], [100.0]) == {"median": 0.01, "mean": 0.01}
    assert offsets([0.5], [0.5]) == {"median": 0.0, "mean": 0.0}
    assert offsets([], [100.0]) == offsets([100.0], []) == offsets([100.0], [0.0]) == {}


def test_levels_may_differ(build: Any, found: Any) -> None:
    run = build.run()
    for arm in ("candidate", "oracle"):
        run = clocked(build, run, arm, 2, 1700.0)
    assert found(run) == []


MASK, LIMIT = "gpu0.throttle_mask", "gpu0.power_limit_w"


def capped(build: Any, run: Any, arm: str, mhz: float, until: float = 1.0) -> Any:
    """The arm's legs at c2 under a power cap."""
    for leg in [leg for leg in run.legs if (leg.arm, leg.concurrency) == (arm, 2)]:
        run = build.alter_telemetry(run, leg.leg_id, MASK, lambda _: 4.0, 0.0, until)
        run = build.alter_telemetry(run, leg.leg_id, CLOCK, lambda _: mhz, 0.0, until)
    return run


def without_limit(build: Any, run: Any) -> Any:
    for leg in run.legs:
        run = build.alter_telemetry(run, leg.leg_id, LIMIT, None)
    return run


def test_an_arm_that_draws_more_power_runs_slower_and_that_is_valid(build: Any, found: Any) -> None:
    run = capped(build, capped(build, build.run(), "candidate", 1500.0, 0.5), "oracle", 1800.0, 0.5)
    assert found(run) == []
    assert found(without_limit(build, run)) == []


@pytest.mark.parametrize("arm", ["candidate", "oracle"])
def test_outside_the_cap_the_limit_is_what_it_was(build: Any, found: Any, arm: str) -> None:
    run = capped(build, capped(build, build.run(), "candidate", 1700.0, 0.5), "oracle", 1700.0, 0.5)
    median, mean = found(clocked(build, run, arm, 2, 1955.0, since=0.51), "clock-offset")
    sign = "-1.3" if arm == "candidate" else "+1.3"
    assert f"SM clock outside its power limit, in 57 and 57 samples, is {sign} % in the candidate's" in median.message
    assert mean.beyond == pytest.approx(1.263 if arm == "candidate" else 1.279, abs=1e-3)
    assert found(clocked(build, run, arm, 2, 1961.0, since=0.51)) == []


def test_two_arms_always_at_one_known_limit_need_no_clock(build: Any, found: Any) -> None:
    run = capped(build, capped(build, build.run(), "candidate", 1500.0), "oracle", 1800.0)
    assert found(run) == []
    median, mean = found(without_limit(build, run))
    assert median.code == mean.code == "clock-offset"
    assert "-16.7 % in the candidate's legs at c2 (power caps explain nothing: the power limit is not" in median.message


@pytest.mark.parametrize("arm", ["candidate", "oracle"])
def test_an_arm_without_a_cap_is_not_below_one_that_has_it(build: Any, found: Any, arm: str) -> None:
    """The highest clock under the cap counts, and one sample shows it."""
    run = capped(build, build.run(), "oracle" if arm == "candidate" else "candidate", 1700.0)
    other = next(leg.leg_id for leg in run.legs if leg.arm != arm and leg.concurrency == 2)
    run = build.alter_telemetry(run, other, CLOCK, lambda _: 2000.0, 0.89, 0.9)
    assert found(clocked(build, run, arm, 2, 1980.0)) == []
    (finding,) = found(clocked(build, run, arm, 2, 1979.0))
    assert (finding.code, finding.concurrency, finding.arm) == ("clock-offset", 2, None)
    assert finding.beyond == pytest.approx(21 / 2000 / 0.01)
    assert f"in the {arm}'s legs is 1.1 % below the 2000 MHz that the" in finding.message
    assert finding.message.endswith(" reached under one at c2; expected at most 1 %")


def test_an_arm_without_a_cap_may_be_above_one_that_has_it(build: Any, found: Any) -> None:
    assert found(capped(build, build.run(), "candidate", 1500.0)) == []


def test_an_arm_whose_clock_was_not_read_is_compared_with_nothing(build: Any, found: Any) -> None:
    run = capped(build, build.run(), "candidate", 1500.0)
    for leg in [leg for leg in run.legs if leg.arm == "candidate"]:
        run = build.alter_telemetry(run, leg.leg_id, CLOCK, None)
    assert {(f.code, f.arm) for f in found(run)} == {("clocks-unsampled", "candidate")}
