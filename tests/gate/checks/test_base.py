"""base: a finding about a leg says which leg, arm, level and axis it voids, and by how much."""

from __future__ import annotations

from typing import Any

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence


def test_a_finding_about_a_leg_names_its_place(build: Any) -> None:
    leg = Evidence.of(build.run()).legs[0]
    made = void_leg("code", leg, "message", "hint", axis="itl", beyond=2.5)
    assert made == build.finding(
        code="code",
        message="message",
        hint="hint",
        leg_id=leg.row.leg_id,
        arm=leg.row.arm,
        concurrency=leg.row.concurrency,
        axis="itl",
        beyond=2.5,
    )
    bare = void_leg("code", leg, "message", "hint")
    assert (bare.axis, bare.beyond) == (None, None)
