"""client-saturated: the load generator measures the server, not itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.client_saturated import cpu_share, lags
from gate.checks.evidence import Evidence


def seconds(run: Any, leg_id: str) -> float:
    return next(leg.duration_s for leg in Evidence.of(run).legs if leg.name == leg_id)


def test_thirty_percent_of_a_core_is_the_limit(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    full = seconds(run, leg)
    assert found(build.alter_leg(run, leg, client_cpu_s=0.3 * full)) == []
    (finding,) = found(build.alter_leg(run, leg, client_cpu_s=0.31 * full))
    assert (finding.code, finding.leg_id) == ("client-saturated", leg)
    assert "31 % of a core; expected at most 30 %" in finding.message
    assert finding.beyond == pytest.approx(0.31 / 0.3)


def late(found: Any, run: Any) -> dict[str | None, Any]:
    return {f.axis: f for f in found(run, "client-saturated")}


def test_loop_lag_voids_the_axes_whose_times_it_blurs(build: Any, found: Any) -> None:
    """A gap is 10 ms, TTFT 50, from the first token to the last 70, E2EL 120; max_spread is 5 %."""
    run = build.run()
    leg = build.leg_id(run)
    for lag, families in {
        0.5: set(),
        0.61: {"itl"},
        2.5: {"itl"},
        2.51: {"itl", "ttft"},
        3.5: {"itl", "ttft"},
        3.51: {"itl", "ttft", "tpot"},
        6.0: {"itl", "ttft", "tpot"},
        6.01: {None},
    }.items():
        assert set(late(found, build.alter_leg(run, leg, client_loop_lag_p99_ms=lag))) == families
    finding = late(found, build.alter_leg(run, leg, client_loop_lag_p99_ms=0.61))["itl"]
    assert "0.61 ms late at p99, 6 % of the median TPOT; expected at most 5 %" in finding.message
    assert finding.beyond == pytest.approx(1.22)
    assert (
        "6 % of the median TTFT" in late(found, build.alter_leg(run, leg, client_loop_lag_p99_ms=3.0))["ttft"].message
    )


def test_a_recipe_that_allows_more_spread_allows_more_lag(build: Any, found: Any) -> None:
    run = build.run(protocol={"max_spread": 0.35})
    leg = build.leg_id(run)
    assert found(build.alter_leg(run, leg, client_loop_lag_p99_ms=3.5)) == []
    assert found(build.alter_leg(run, leg, client_loop_lag_p99_ms=3.6))


def test_a_client_that_was_not_measured_is_not_judged(build: Any, found: Any) -> None:
    run = build.run()
    assert found(build.alter_leg(run, build.leg_id(run), client_cpu_s=None, client_loop_lag_p99_ms=None)) == []


def test_a_leg_without_time_or_tokens_has_no_share(build: Any) -> None:
    """No request was sent: failed-request says so, and nothing is divided by zero."""
    run = build.run()
    leg = next(view for view in Evidence.of(run).legs)
    still = dataclasses.replace(leg, row=leg.row.model_copy(update={"end_ns": leg.row.start_ns}))
    assert cpu_share(still) is None
    frozen = tuple(r.model_copy(update={"last_token_ns": r.first_token_ns}) for r in leg.requests)
    late = leg.row.model_copy(update={"client_loop_lag_p99_ms": 1.0})
    assert lags(dataclasses.replace(leg, row=late, requests=frozen)) == pytest.approx({None: 1 / 50, "ttft": 1 / 50})
    assert lags(dataclasses.replace(leg, row=late, requests=())) == {}


def test_a_request_of_one_token_has_no_time_between_tokens(build: Any) -> None:
    leg = next(iter(Evidence.of(build.run()).legs))
    late = leg.row.model_copy(update={"client_loop_lag_p99_ms": 1.0})
    single = leg.requests[0].model_copy(update={"completion_tokens": 1})
    found = lags(dataclasses.replace(leg, row=late, requests=(single, *leg.requests[1:])))
    assert found["tpot"] == pytest.approx(1 / 70)
    assert "tpot" not in lags(dataclasses.replace(leg, row=late, requests=(single,)))


def test_a_short_tpot_is_a_tpot(build: Any) -> None:
    leg = next(iter(Evidence.of(build.run(tpot_ms=0.5)).legs))
    assert lags(leg)["itl"] == pytest.approx(0.2)


def test_other_work_on_the_host_is_named_as_the_cause(build: Any, found: Any) -> None:
    run = build.alter_leg(build.run(), build.leg_id(build.run()), client_loop_lag_p99_ms=50.0)
    busy = dataclasses.replace(run, preflight=(build.finding(code="host-busy"),))
    assert "core of its own" in found(run, "client-saturated")[0].hint
    assert "kept this host busy" in found(busy, "client-saturated")[0].hint
