"""Cells: what the first look sees of a run that went on. More of the looks is in test_looks.py."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.cells import main_legs
from gate.judge import judge
from gate.plan import PlannedLeg


def test_the_first_look_sees_no_record_of_an_extra_leg(build: Any) -> None:
    run = build.run()
    *kept, extra = run.plan.legs
    extended = dataclasses.replace(run, plan=run.plan.model_copy(update={"legs": tuple(kept), "extra_legs": (extra,)}))
    seen = main_legs(extended)
    for before, after in (
        (run.legs, seen.legs),
        (run.requests, seen.requests),
        (run.telemetry, seen.telemetry),
    ):
        assert any(row.leg_id == extra.leg_id for row in before)
        assert after == tuple(row for row in before if row.leg_id != extra.leg_id)


@pytest.mark.parametrize("arm", ["candidate", "oracle"])
def test_legs_that_fall_in_two_groups_are_told_of_their_arm(build: Any, arm: str) -> None:
    def speed(leg: PlannedLeg) -> float:
        return 1.02 if leg.arm == arm and leg.repetition % 2 else 1.0

    made = judge(build.run(speed, protocol={"repetitions": 4}))
    (cell,) = [one for one in made.cells if (one.axis, one.concurrency) == ("tpot_median_ms", 1)]
    (note,) = cell.notes
    assert note.startswith(f"the {arm}'s legs fall in two groups ")
    assert note.endswith(" (2 and 2 legs): their median describes neither")
