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
