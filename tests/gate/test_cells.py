"""Cells: what the first look sees of a run that went on. More of the looks is in test_looks.py."""

from __future__ import annotations

import dataclasses
from typing import Any

from gate.cells import main_legs


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
