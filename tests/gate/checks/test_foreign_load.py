"""foreign-load: nobody else on the host."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.evidence import Evidence
from gate.checks.foreign_load import foreign_cores


def test_a_quarter_of_a_core_is_the_limit(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    full = next(view.duration_s for view in Evidence.of(run).legs if view.name == leg)
    assert found(build.alter_leg(run, leg, host_load_foreign_cpu_s=0.25 * full)) == []
    (finding,) = found(build.alter_leg(run, leg, host_load_foreign_cpu_s=0.26 * full))
    assert (finding.code, finding.leg_id) == ("foreign-load", leg)
    assert "0.26 cores during the leg; expected at most 0.25" in finding.message
    assert finding.beyond == pytest.approx(1.04)


def test_a_leg_without_time_has_no_load(build: Any) -> None:
    leg = Evidence.of(build.run()).legs[0]
    still = leg.row.model_copy(update={"end_ns": leg.row.start_ns, "host_load_foreign_cpu_s": 1.0})
    assert foreign_cores(dataclasses.replace(leg, row=still)) is None


def test_a_host_that_was_not_watched_is_not_judged(build: Any, found: Any) -> None:
    run = build.run()
    assert found(build.alter_leg(run, build.leg_id(run), host_load_foreign_cpu_s=None)) == []
