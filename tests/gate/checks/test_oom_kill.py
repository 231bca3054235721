"""oom-kill: a host that had to kill was no host to measure on."""

from __future__ import annotations

from typing import Any


def test_one_kill_voids_the_leg(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    (finding,) = found(build.alter_leg(run, leg, host_oom_kills=1))
    assert (finding.code, finding.leg_id) == ("oom-kill", leg)
    assert finding.message == "the kernel killed 1 processes; expected 0"


def test_none_and_a_kernel_that_does_not_count_are_silent(build: Any, found: Any) -> None:
    run = build.run()
    assert found(run) == []
    assert found(build.alter_leg(run, build.leg_id(run), host_oom_kills=None)) == []
