"""idle-arm-active: a proxy to the oracle, and a server that spins while the other one is measured."""

from __future__ import annotations

from typing import Any

import pytest


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


@pytest.mark.parametrize("changes", [{"other_arm_tokens": None}, {"other_arm_tokens": 0, "other_arm_cpu_s": 0.0}])
def test_an_arm_that_rests_or_is_not_there_is_silent(build: Any, found: Any, changes: dict[str, Any]) -> None:
    run = build.run()
    if changes["other_arm_tokens"] is not None:
        run = build.alter_leg(run, build.leg_id(run), **changes)
    assert found(run, "idle-arm-active") == []
