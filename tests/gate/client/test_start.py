"""How a leg begins, on a simulated server: who is steady, and what the checks say of a leg that began staggered."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from gate.checks import cold_first_requests, delivered_concurrency, warmup_unsettled
from gate.checks.evidence import Evidence
from gate.recipe import STEPS_PER_TURN
from tests.gate.client.simulate_start import (
    CANDIDATE,
    ORACLE,
    OUTPUT,
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


def found(build: Any, costs: Costs, streams: int, output: int) -> list[str]:
    """Codes of the findings in a staggered leg with two requests a stream."""
    workload = {"requests_per_stream": 2, "start": "staggered", "output_tokens": STEPS_PER_TURN * streams}
    run = build.run(protocol={"concurrency": (1, streams)}, workload=workload, max_model_len=1024)
    leg = build.leg_id(run, "oracle", streams, 1)
    began = min(row.sent_ns for row in run.requests if row.leg_id == leg)
    answers = staggered(costs, streams, 2 * streams, np.random.default_rng(0), output)
    assert in_flight(answers) == streams

    def simulated(row: Any) -> Any:
        answer = answers[row.index]
        sent, *stamps = (began + round(1e6 * time) for time in (answer.sent, *answer.stamps))
        times = {"sent_ns": sent, "first_token_ns": stamps[0], "last_token_ns": stamps[-1], "end_ns": stamps[-1]}
        many = {"token_times_ns": tuple(stamps), "tokens_per_event": (1,) * len(stamps)}
        return row.model_copy(update=times | many)

    requests = tuple(simulated(row) if row.leg_id == leg else row for row in run.requests)
    evidence = Evidence.of(dataclasses.replace(run, requests=requests))
    checks = (delivered_concurrency, cold_first_requests, warmup_unsettled)
    return [finding.code for check in checks for finding in check.check(evidence) if finding.leg_id == leg]


@BOTH
@pytest.mark.parametrize("streams", [2, 4, 8, 16, 32])
def test_the_checks_find_nothing_in_a_staggered_leg(build: Any, costs: Costs, streams: int) -> None:
    assert found(build, costs, streams, OUTPUT) == []


@BOTH
@pytest.mark.parametrize("streams", [4, 8, 16, 32])
def test_nor_at_the_shortest_answers_that_a_recipe_may_ask_for(build: Any, costs: Costs, streams: int) -> None:
    """With half of that a request's median gap is now decoding's and now a prefill's: a sound leg looks unsettled."""
    assert found(build, costs, streams, STEPS_PER_TURN * streams) == []
    if streams == 16 and costs is CANDIDATE:
        assert set(found(build, costs, streams, STEPS_PER_TURN * streams // 2)) == {"warmup-unsettled"}


@pytest.mark.parametrize("output", [16, 32])
def test_with_one_request_a_stream_not_all_are_ever_under_way(output: int) -> None:
    """Which is why a recipe may not ask for it."""
    assert in_flight(staggered(ORACLE, 32, 32, np.random.default_rng(0), output)) < 32
    assert in_flight(staggered(ORACLE, 32, 64, np.random.default_rng(0), output)) == 32
