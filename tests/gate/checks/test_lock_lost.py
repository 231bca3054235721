"""lock-lost: held from start to end, or void."""

from __future__ import annotations

from typing import Any


def test_a_lost_lock_voids_the_leg(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    (finding,) = found(build.alter_leg(run, leg, lock_held=False))
    assert (finding.code, finding.leg_id) == ("lock-lost", leg)


def test_a_held_lock_is_silent(build: Any, found: Any) -> None:
    assert found(build.run(), "lock-lost") == []
