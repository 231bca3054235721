"""By how much the candidate is ahead at least: which figures of which legs a bound rests on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from gate.bounds import apart
from gate.checks.evidence import Evidence
from gate.metrics import AXES, SERVER_AXES, Axis
from gate.plan import PlannedLeg
from gate.selftest.time_faults import stretch


def axis(name: str) -> Axis:
    return next(one for one in (*AXES, *SERVER_AXES) if one.name == name)


def evidence(build: Any, speed: Callable[[PlannedLeg], float] | None = None, **factors: dict[int, float]) -> Evidence:
    """Twelve requests on one stream; the candidate's legs stretched, if they are to be."""
    run = build.run(speed, protocol={"concurrency": (1,)}, workload={"requests_per_stream": 12})
    for leg in run.plan.legs if factors else ():
        if leg.arm == "candidate":
            run = stretch(run, leg.leg_id, **factors)
    return Evidence.of(run)


def twice(leg: PlannedLeg) -> float:
    return 2.0 if leg.arm == "candidate" else 1.0


@pytest.mark.parametrize(
    ("slow", "least"),
    [({5: 4.0}, 2.0), ({6: 4.0}, 0.5), ({0: 4.0, 1: 4.0, 2: 4.0}, 0.5), ({9: 4.0, 10: 4.0, 11: 4.0}, 0.5)],
)
def test_a_median_rests_on_all_requests_and_on_the_later_half(build: Any, slow: dict[int, float], least: float) -> None:
    """One in twelve is in the tenth of all; of the later six each counts for twice as much."""
    found = apart(evidence(build, twice, ttft=slow), axis("ttft_median_ms"), 1, 3, within=True)
    assert found is not None
    assert found.least == pytest.approx(least, rel=1e-3)


def test_one_slow_request_of_the_later_half_is_more_than_a_tenth_of_it(build: Any) -> None:
    found = apart(evidence(build, twice, ttft={11: 4.0}), axis("ttft_median_ms"), 1, 3, within=True)
    assert found is not None
    assert found.least == pytest.approx(0.5, rel=1e-3)


def test_a_rate_rests_on_its_legs_and_on_e2el_where_something_moved_within_one(build: Any) -> None:
    """Three in twelve take four times as long: the rate is 8 / 7 of the oracle's."""
    made = evidence(build, twice, ttft=dict.fromkeys((0, 4, 8), 4.0), itl=dict.fromkeys((0, 4, 8), 4.0))
    between, within = (apart(made, axis("request_throughput"), 1, 3, within=one) for one in (False, True))
    assert between is not None
    assert within is not None
    assert between.least == pytest.approx(8 / 7, rel=1e-3)
    assert within.least == pytest.approx(0.5, rel=1e-3)
    assert between.moved == within.moved == pytest.approx(0.0, abs=1e-6)


def test_what_moved_is_the_legs_own_value(build: Any) -> None:
    made = evidence(build, lambda leg: 2.0 if leg.arm == "candidate" else 1.0 - 0.2 * (leg.repetition == 1))
    found = apart(made, axis("tpot_median_ms"), 1, 3, within=False)
    assert found is not None
    assert (found.least, found.moved) == (pytest.approx(2.0, rel=1e-3), pytest.approx(0.25, rel=1e-3))


def test_repetitions_that_the_look_does_not_rest_on_are_left_out(build: Any) -> None:
    """The third is a disaster."""
    made = evidence(build, lambda leg: 0.1 if leg.repetition == 2 and leg.arm == "candidate" else twice(leg))
    for name in ("tpot_median_ms", "output_throughput"):
        two, three = (apart(made, axis(name), 1, count, within=True) for count in (2, 3))
        assert two is not None
        assert three is not None
        assert (two.least, three.least) == (pytest.approx(2.0, rel=1e-2), pytest.approx(0.1, rel=1e-2))


@pytest.mark.parametrize("name", ["tpot_mean_ms", "ttft_p90_ms", "itl_median_ms", "peak_gpu_bytes"])
def test_another_axis_has_none(build: Any, name: str) -> None:
    assert apart(evidence(build, twice), axis(name), 1, 3, within=True) is None


def test_a_leg_without_a_value_leaves_none(build: Any) -> None:
    assert apart(evidence(build, twice), axis("tpot_median_ms"), 1, 4, within=True) is None


def streams(build: Any, arm: str, itl: dict[int, float]) -> Evidence:
    """Three waves of four requests, the last of which nobody follows; one arm's requests stretched by index."""
    run = build.run(twice, protocol={"concurrency": (4,)}, workload={"requests_per_stream": 3})
    for leg in run.plan.legs:
        if leg.arm == arm:
            run = stretch(run, leg.leg_id, itl=itl)
    return Evidence.of(run)


LAST_WAVE = range(8, 12)


@pytest.mark.parametrize(("name", "least"), [("tpot_median_ms", 2.0), ("output_throughput", 1.767)])
def test_the_oracles_requests_that_ran_beside_fewer_streams_say_nothing_of_its_pace(
    build: Any, name: str, least: float
) -> None:
    """Of a rate its legs stay, in which the last wave is as fast as it was."""
    found = apart(streams(build, "oracle", dict.fromkeys(LAST_WAVE, 0.4)), axis(name), 4, 3, within=True)
    assert found is not None
    assert found.least == pytest.approx(least, rel=1e-2)


@pytest.mark.parametrize("slow", [dict.fromkeys(range(4, 8), 4.0), dict.fromkeys(LAST_WAVE, 4.0)])
def test_the_candidates_own_count_wherever_they_are(build: Any, slow: dict[int, float]) -> None:
    found = apart(streams(build, "candidate", slow), axis("tpot_median_ms"), 4, 3, within=True)
    assert found is not None
    assert found.least == pytest.approx(0.5, rel=1e-2)


def test_the_candidates_last_wave_does_not_hide_those_before(build: Any) -> None:
    """One of four of the second wave is slow: of the later six less than a tenth, of those that count one in four."""
    found = apart(streams(build, "candidate", {7: 4.0}), axis("tpot_median_ms"), 4, 3, within=True)
    assert found is not None
    assert found.least == pytest.approx(0.5, rel=1e-2)


def test_a_prompt_of_the_last_wave_is_read_beside_all_streams(build: Any) -> None:
    run = build.run(twice, protocol={"concurrency": (4,)}, workload={"requests_per_stream": 3})
    for leg in run.plan.legs:
        if leg.arm == "oracle":
            run = stretch(run, leg.leg_id, ttft=dict.fromkeys(LAST_WAVE, 0.4))
    found = apart(Evidence.of(run), axis("ttft_median_ms"), 4, 3, within=True)
    assert found is not None
    assert found.least == pytest.approx(0.8, rel=1e-2)


def test_two_streams_end_one_by_one_as_well(build: Any) -> None:
    run = build.run(twice, protocol={"concurrency": (2,)}, workload={"requests_per_stream": 3})
    for leg in run.plan.legs:
        if leg.arm == "oracle":
            run = stretch(run, leg.leg_id, itl={4: 0.4, 5: 0.4})
    found = apart(Evidence.of(run), axis("tpot_median_ms"), 2, 3, within=True)
    assert found is not None
    assert found.least == pytest.approx(2.0, rel=1e-2)


def test_one_stream_is_busy_to_the_end(build: Any) -> None:
    run = build.run(twice, protocol={"concurrency": (1,)}, workload={"requests_per_stream": 12})
    for leg in run.plan.legs:
        if leg.arm == "oracle":
            run = stretch(run, leg.leg_id, itl={11: 0.4})
    found = apart(Evidence.of(run), axis("tpot_median_ms"), 1, 3, within=True)
    assert found is not None
    assert found.least == pytest.approx(0.8, rel=1e-2)


def test_one_request_for_each_stream_leaves_none_that_ran_beside_all(build: Any) -> None:
    run = build.run(twice, protocol={"concurrency": (4,)}, workload={"requests_per_stream": 1})
    found = apart(Evidence.of(run), axis("tpot_median_ms"), 4, 3, within=True)
    assert found is not None
    assert found.least == 0.0


def test_a_request_of_the_oracle_that_never_ended_did_not_end_in_time(build: Any) -> None:
    made = streams(build, "oracle", dict.fromkeys((4, 5, 6, 7), 0.5))
    open_end = {(leg.row.leg_id, index) for leg in made.at(4, "oracle") for index in (4, 5, 6, 7)}
    rows = tuple(
        row.model_copy(update={"end_ns": None}) if (row.leg_id, row.index) in open_end else row
        for row in made.run.requests
    )
    found = apart(Evidence.of(dataclasses.replace(made.run, requests=rows)), axis("tpot_median_ms"), 4, 3, within=True)
    assert found is not None
    assert found.least == pytest.approx(2.0, rel=1e-2)


@pytest.mark.parametrize(("later_by_ns", "least"), [(0, 1.0), (1, 2.0)])
def test_one_that_ends_with_the_very_last_send_counts(build: Any, later_by_ns: int, least: float) -> None:
    """The oracle's second wave took half as long; the twelfth request is sent later than the eleventh."""
    made = streams(build, "oracle", dict.fromkeys((4, 5, 6, 7), 0.5))
    rows = []
    for row in made.run.requests:
        last_ns = max(one.sent_ns for one in made.run.requests if one.leg_id == row.leg_id) + 10
        if row.index in (4, 5, 6, 7):
            row = row.model_copy(update={"end_ns": last_ns + later_by_ns})
        if row.index == 11:
            row = row.model_copy(update={"sent_ns": last_ns})
        rows.append(row)
    run = dataclasses.replace(made.run, requests=tuple(rows))
    found = apart(Evidence.of(run), axis("tpot_median_ms"), 4, 3, within=True)
    assert found is not None
    assert found.least == pytest.approx(least, rel=1e-2)
