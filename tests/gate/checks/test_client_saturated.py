"""client-saturated: the load generator measures the server, not itself."""

from __future__ import annotations

from typing import Any

from gate.checks.evidence import Evidence


def seconds(run: Any, leg_id: str) -> float:
    return next(leg.duration_s for leg in Evidence.of(run).legs if leg.name == leg_id)


def test_half_a_core_is_the_limit(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    full = seconds(run, leg)
    assert found(build.alter_leg(run, leg, client_cpu_s=0.5 * full)) == []
    (finding,) = found(build.alter_leg(run, leg, client_cpu_s=0.51 * full))
    assert (finding.code, finding.leg_id) == ("client-saturated", leg)
    assert "51 % of a core; expected at most 50 %" in finding.message


def test_loop_lag_of_one_tpot_is_the_limit(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    assert found(build.alter_leg(run, leg, client_loop_lag_p99_ms=10.0)) == []
    (finding,) = found(build.alter_leg(run, leg, client_loop_lag_p99_ms=10.1))
    assert "10.10 ms late at p99, 1.01 × the median TPOT" in finding.message


def test_a_client_that_was_not_measured_is_not_judged(build: Any, found: Any) -> None:
    run = build.run()
    assert found(build.alter_leg(run, build.leg_id(run), client_cpu_s=None, client_loop_lag_p99_ms=None)) == []
