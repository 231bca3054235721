"""delivered-concurrency: the load is recomputed from stamps, not taken from the flag."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.delivered_concurrency import check, mean_while_sending, peak
from gate.checks.evidence import Evidence

MS = 1_000_000


def intervals(run: Any, leg: str, spans: list[tuple[int, int]]) -> Any:
    for index, (start, end) in enumerate(spans):
        run = build_interval(run, leg, index, start, end)
    return run


def build_interval(run: Any, leg: str, index: int, start: int, end: int) -> Any:
    changes = {"sent_ns": start * MS, "end_ns": end * MS}
    requests = tuple(r.model_copy(update=changes) if (r.leg_id, r.index) == (leg, index) else r for r in run.requests)
    return dataclasses.replace(run, requests=requests)


def faults(run: Any) -> list[Any]:
    """This check alone: the spans move sends and ends only, which is impossible for other reasons."""
    return list(check(Evidence.of(run)))


def of_leg(run: Any, leg: str) -> list[Any]:
    return [r for r in run.requests if r.leg_id == leg]


@pytest.mark.parametrize(
    ("spans", "most"),
    [
        ([(0, 10), (0, 10), (10, 20), (10, 20)], 2),
        ([(0, 10), (10, 20), (20, 30), (30, 40)], 1),
        ([(0, 10), (0, 10), (9, 20), (9, 20)], 4),
        ([(0, 10), (0, 10), (10, 20), (10, 20)][::-1], 2),
    ],
    ids=["exact", "one at a time", "over-driven", "any order"],
)
def test_peak_by_interval_sweep(build: Any, spans: Any, most: int) -> None:
    run = build.run()
    leg = build.leg_id(run)
    assert peak(of_leg(intervals(run, leg, spans), leg)) == most


@pytest.mark.parametrize("spans", [[(0, 10), (10, 20), (20, 30), (30, 40)], [(0, 10), (0, 10), (9, 20), (9, 20)]])
def test_a_wrong_peak_voids_the_leg(build: Any, spans: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    (finding,) = faults(intervals(run, leg, spans))
    assert finding.leg_id == leg
    assert finding.message.endswith("expected exactly 2")


def test_more_streams_than_requests_is_limited_by_the_requests(build: Any, found: Any) -> None:
    run = build.run(workload={"requests_per_stream": 1})
    assert found(run, "delivered-concurrency") == []


def test_mean_in_flight_while_sending(build: Any) -> None:
    """2 until 10 ms, 1 until 15 ms, when the last is sent: (2·10 + 1·5) / 15."""
    run = build.run()
    leg = build.leg_id(run)
    altered = intervals(run, leg, [(0, 10), (0, 20), (15, 30), (15, 30)])
    assert mean_while_sending(of_leg(altered, leg), 2) == pytest.approx(25 / 15)


def test_the_ramp_is_not_held_against_the_client(build: Any) -> None:
    """The second stream starts 50 ms after the first: the mean is taken from there."""
    run = build.run()
    leg = build.leg_id(run)
    altered = intervals(run, leg, [(0, 100), (50, 100), (100, 200), (100, 200)])
    assert mean_while_sending(of_leg(altered, leg), 2) == 2


def test_the_message_has_mean_and_bound(build: Any) -> None:
    run = build.run()
    altered = intervals(run, build.leg_id(run), [(0, 100), (0, 100), (150, 200), (150, 200)])
    (finding,) = faults(altered)
    assert finding.message == "mean of 1.33 requests in flight while sending; expected at least 1.90"
    assert finding.beyond == pytest.approx(1.9 / (200 / 150))


def test_where_nothing_was_in_flight_no_share_is_told(build: Any) -> None:
    """Ends at the stamp of the send, which impossible-times reports: a mean of 0 divides nothing."""
    run = build.run()
    (finding,) = faults(intervals(run, build.leg_id(run), [(0, 0), (5, 5), (10, 20), (10, 20)]))
    assert (finding.message[:12], finding.beyond) == ("mean of 0.00", None)


def test_a_mean_at_the_bound_is_enough(build: Any) -> None:
    """2 until 90 ms, 1 until 100: 1.9 of 2."""
    run = build.run()
    assert faults(intervals(run, build.leg_id(run), [(0, 90), (0, 100), (100, 200), (100, 200)])) == []


def test_the_mean_is_up_to_the_last_send(build: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    altered = intervals(run, leg, [(0, 10), (0, 10), (10, 30), (25, 40)])
    assert mean_while_sending(of_leg(altered, leg), 2) == pytest.approx(35 / 25)


def test_a_request_that_ends_before_it_is_sent_is_not_in_flight(build: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    assert peak(of_leg(intervals(run, leg, [(5, 7), (5, 7), (8, 2), (8, 2)]), leg)) == 2


def test_without_a_refill_there_is_no_mean(build: Any) -> None:
    """As many requests as streams, or all sent at once: nothing was sent after the ramp."""
    run = build.run()
    leg = build.leg_id(run)
    rows = of_leg(run, leg)
    assert mean_while_sending(rows, 4) is None
    assert mean_while_sending(rows, 5) is None
    at_once = intervals(run, leg, [(0, 10), (0, 10), (0, 10), (0, 10)])
    assert mean_while_sending(of_leg(at_once, leg), 2) is None


def test_a_request_that_never_ended_is_not_in_flight(build: Any) -> None:
    run = build.run()
    rows = of_leg(run, build.leg_id(run))
    assert peak([rows[0].model_copy(update={"end_ns": None, "last_token_ns": None})]) == 0
    assert peak([rows[0].model_copy(update={"end_ns": None})]) == 1
    assert peak([rows[0].model_copy(update={"end_ns": rows[0].sent_ns})]) == 0


@pytest.mark.parametrize(("pause_ms", "voided"), [(10, False), (12, True)])
def test_the_mean_just_below_and_above_its_bound(build: Any, pause_ms: int, voided: bool) -> None:
    """After 100 ms both streams end together; both resume after the pause: mean 2 · 100 / (100 + pause)."""
    run = build.run()
    leg = build.leg_id(run)
    resume = 100 + pause_ms // 2
    altered = intervals(run, leg, [(0, 100), (0, 100), (resume, 200), (resume, 200)])
    assert bool(faults(altered)) == voided


def test_open_loop_has_no_concurrency_to_deliver(build: Any) -> None:
    run = build.run(workload={"arrival": "poisson", "rate_per_stream": 1.0})
    leg = build.leg_id(run)
    altered = intervals(run, leg, [(0, 10), (10, 20), (20, 30), (30, 40)])
    assert faults(altered) == []
