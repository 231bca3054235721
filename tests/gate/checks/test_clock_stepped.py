"""clock-stepped: a disciplined clock slews, it does not jump."""

from __future__ import annotations

from typing import Any

import pytest

from gate.checks.evidence import Evidence


def duration_s(run: Any, leg_id: str) -> float:
    return float(next(leg.duration_s for leg in Evidence.of(run).legs if leg.name == leg_id))


@pytest.mark.parametrize("sign", [1, -1], ids=["forward", "back"])
def test_a_step_beyond_ntp_voids_the_leg_either_way(build: Any, found: Any, sign: int) -> None:
    run = build.run()
    leg = build.leg_id(run)
    allowed = 128 + 0.5 * duration_s(run, leg)
    assert found(build.alter_leg(run, leg, wall_step_ms=sign * allowed)) == []
    (finding,) = found(build.alter_leg(run, leg, wall_step_ms=sign * (allowed + 0.1)))
    assert (finding.code, finding.leg_id) == ("clock-stepped", leg)
    assert finding.beyond == pytest.approx((allowed + 0.1) / allowed)


def test_a_long_leg_may_be_slewed(build: Any, found: Any) -> None:
    run = build.run(ttft_ms=100_000)
    leg = build.leg_id(run)
    slewed = build.alter_leg(run, leg, wall_step_ms=226.0)
    assert found(slewed, "clock-stepped") == []
    assert found(build.alter_leg(run, leg, wall_step_ms=230.0), "clock-stepped")


def test_a_clock_that_was_not_read_is_not_judged(build: Any, found: Any) -> None:
    run = build.run()
    assert found(build.alter_leg(run, build.leg_id(run), wall_step_ms=None)) == []
