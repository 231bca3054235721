"""How a leg begins, on a simulated server: who is steady, and what the checks say of a leg that began staggered."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from gate.checks import cold_first_requests, delivered_concurrency, warmup_unsettled
from gate.checks.evidence import Evidence
from tests.gate.client.simulate_start import (
    CANDIDATE,
    ORACLE,
    Costs,
    figures,
    in_flight,
    spreads,
    staggered,
    together,
)

BOTH = pytest.mark.parametrize("costs", [ORACLE, CANDIDATE], ids=["oracle", "candidate"])


@pytest.mark.parametrize(
    ("streams", "measured"), [(1, 100.2), (2, 180.7), (4, 298.4), (8, 441.2), (16, 578.3), (32, 677.4)]
)
def test_the_model_gives_the_throughputs_of_the_run_that_its_costs_are_from(streams: int, measured: float) -> None:
    """Of the oracle, with two requests a stream that begin together."""
    found = figures(together(ORACLE, streams, 2 * streams, np.random.default_rng(0)))[2]
    assert found == pytest.approx(measured, rel=0.02)


@BOTH
@pytest.mark.parametrize("streams", [1, 2, 4, 8, 16, 32])
def test_three_legs_that_began_staggered_are_alike(costs: Costs, streams: int) -> None:
    assert spreads(staggered, costs, streams, streams * max(2, 4 // streams), 4).max() < 0.03


@pytest.mark.parametrize("streams", [2, 4])
def test_legs_that_began_together_fall_in_modes(streams: int) -> None:
    ttft, tpot, rate = spreads(together, ORACLE, streams, 8, 20).max(axis=0)
    assert ttft > 0.15
    assert tpot > 0.05
    assert rate < 0.02


@BOTH
@pytest.mark.parametrize("streams", [2, 4, 8, 16, 32])
def test_the_checks_find_nothing_in_a_staggered_leg(build: Any, costs: Costs, streams: int) -> None:
    workload = {"requests_per_stream": 2, "start": "staggered"}
    run = build.run(protocol={"concurrency": (1, streams)}, workload=workload)
    leg = build.leg_id(run, "oracle", streams, 1)
    began = min(row.sent_ns for row in run.requests if row.leg_id == leg)
    answers = staggered(costs, streams, 2 * streams, np.random.default_rng(0))
    assert in_flight(answers) == streams

    def simulated(row: Any) -> Any:
        answer = answers[row.index]
        sent, *stamps = (began + round(1e6 * time) for time in (answer.sent, *answer.stamps))
        times = {"sent_ns": sent, "first_token_ns": stamps[0], "last_token_ns": stamps[-1], "end_ns": stamps[-1]}
        many = {"token_times_ns": tuple(stamps), "tokens_per_event": (1,) * len(stamps)}
        return row.model_copy(update=times | many)

    requests = tuple(simulated(row) if row.leg_id == leg else row for row in run.requests)
    evidence = Evidence.of(dataclasses.replace(run, requests=requests))
    for check in (delivered_concurrency, cold_first_requests, warmup_unsettled):
        assert [finding for finding in check.check(evidence) if finding.leg_id == leg] == []
