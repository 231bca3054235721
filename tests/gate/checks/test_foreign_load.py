"""foreign-load: nobody else on the host."""

from __future__ import annotations

from typing import Any

from gate.checks.evidence import Evidence


def test_a_quarter_of_a_core_is_the_limit(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    full = next(view.duration_s for view in Evidence.of(run).legs if view.name == leg)
    assert found(build.alter_leg(run, leg, host_load_foreign_cpu_s=0.25 * full)) == []
    (finding,) = found(build.alter_leg(run, leg, host_load_foreign_cpu_s=0.26 * full))
    assert (finding.code, finding.leg_id) == ("foreign-load", leg)
    assert "0.26 cores during the leg; expected at most 0.25" in finding.message


def test_a_host_that_was_not_watched_is_not_judged(build: Any, found: Any) -> None:
    run = build.run()
    assert found(build.alter_leg(run, build.leg_id(run), host_load_foreign_cpu_s=None)) == []
