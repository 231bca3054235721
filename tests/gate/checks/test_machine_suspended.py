"""machine-suspended: monotonic stamps do not see sleep."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(("slept_ms", "void"), [(None, False), (0.0, False), (10.0, False), (10.1, True), (3e6, True)])
def test_sleep_voids_the_leg(build: Any, found: Any, slept_ms: float | None, void: bool) -> None:
    run = build.run()
    leg = build.leg_id(run)
    altered = run if slept_ms == 0 else build.alter_leg(run, leg, suspended_ms=slept_ms)
    assert [(f.code, f.leg_id) for f in found(altered)] == ([("machine-suspended", leg)] if void else [])


def test_the_message_says_how_long(build: Any, found: Any) -> None:
    run = build.run()
    (finding,) = found(build.alter_leg(run, build.leg_id(run), suspended_ms=90_000.0))
    assert finding.message == "the machine slept for 90000 ms; expected at most 10"
