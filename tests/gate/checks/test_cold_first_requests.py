"""cold-first-requests: what a server does on first use is not what it does."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.cold_first_requests import check, excess
from gate.checks.evidence import Evidence


def codes(findings: Any) -> set[tuple[str, str]]:
    return {(f.code, f.leg_id) for f in findings if f.code == "cold-first-requests"}


@pytest.mark.parametrize("what", ["ttft", "itl"])
@pytest.mark.parametrize(("factor", "void"), [(1.149, False), (1.151, True)])
def test_three_times_the_spread_is_the_limit(
    build: Any, found: Any, stretch: Any, what: str, factor: float, void: bool
) -> None:
    run = build.run()
    leg = build.leg_id(run, "oracle", 2, 1)
    cold = stretch(run, leg, **{what: {0: factor, 1: factor}})
    findings = found(cold, "cold-first-requests")
    assert codes(findings) == ({("cold-first-requests", leg)} if void else set())
    if void:
        name = {"ttft": "TTFT", "itl": "median ITL"}[what]
        assert (
            f"{name} of the first 2 requests was 15.1 % above that of nine in ten of the later ones"
            in findings[0].message
        )


def test_exactly_the_limit_is_allowed(build: Any, found: Any, stretch: Any) -> None:
    """50 ms and 87.5 ms are 0.75 apart, which three times a spread of 0.25 is."""
    run = build.run(protocol={"max_spread": 0.25})
    leg = build.leg_id(run, "oracle", 2, 1)
    assert codes(found(stretch(run, leg, ttft={0: 1.75, 1: 1.75}))) == set()
    (finding,) = found(stretch(run, leg, ttft={0: 2.5, 1: 2.5}), "cold-first-requests")
    assert finding.beyond == 2


def test_one_fast_first_request_shows_that_the_server_was_warm(build: Any, stretch: Any) -> None:
    """The other one waited behind it: that is a queue. The check alone: the load in flight is no longer C."""
    run = build.run()
    assert codes(check(Evidence.of(stretch(run, build.leg_id(run), ttft={1: 2.0})))) == set()


def test_a_leg_with_nothing_after_its_first_requests_is_not_judged(build: Any, found: Any) -> None:
    assert found(build.run(workload={"requests_per_stream": 1}), "cold-first-requests") == []


def test_a_slow_later_request_is_not_cold(build: Any, found: Any, stretch: Any) -> None:
    run = build.run()
    assert codes(found(stretch(run, build.leg_id(run), ttft={2: 2.0, 3: 2.0}))) == set()


def test_the_recipe_says_what_spread_is(build: Any, found: Any, stretch: Any) -> None:
    run = build.run(protocol={"max_spread": 0.35})
    assert codes(found(stretch(run, build.leg_id(run), ttft={0: 2.0, 1: 2.0}))) == set()


def test_an_open_loop_has_no_first_wave(build: Any, found: Any, stretch: Any) -> None:
    run = build.run(workload={"arrival": "poisson", "rate_per_stream": 5.0})
    assert codes(found(stretch(run, build.leg_id(run), ttft={0: 2.0, 1: 2.0}))) == set()


def test_requests_are_taken_in_the_order_sent(build: Any, stretch: Any) -> None:
    """The check alone: requests that change places overlap, which is another fault."""
    run = build.run()
    leg = build.leg_id(run)
    late = stretch(run, leg, ttft={2: 2.0, 3: 2.0})
    sends = {r.index: r.sent_ns for r in late.requests if r.leg_id == leg}
    moved = tuple(
        r.model_copy(
            update={
                key: getattr(r, key) + sends[3 - r.index] - r.sent_ns
                for key in ("sent_ns", "first_token_ns", "last_token_ns", "end_ns")
            }
            | {"token_times_ns": tuple(t + sends[3 - r.index] - r.sent_ns for t in r.token_times_ns)}
        )
        if r.leg_id == leg
        else r
        for r in late.requests
    )
    assert codes(check(Evidence.of(dataclasses.replace(late, requests=moved)))) == {("cold-first-requests", leg)}


def test_nothing_measured_is_no_excess() -> None:
    assert excess([None, 2.0, 1.0], 2) == 1.0
    assert excess([None, 1.0], 1) is None
    assert excess([1.0], 1) is None
    assert excess([1.0, 0.0], 1) is None
    assert excess([2.0, None, 1.0], 1) == 1.0


def test_a_buffered_stream_has_no_latency_to_look_at(build: Any, found: Any, stretch: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    cold = stretch(run, leg, ttft={0: 2.0, 1: 2.0})
    lumped = tuple(
        r.model_copy(update={"token_times_ns": (r.last_token_ns,) * 8, "first_token_ns": r.last_token_ns})
        if r.leg_id == leg
        else r
        for r in cold.requests
    )
    assert {f.code for f in found(dataclasses.replace(cold, requests=lumped))} >= {"buffered-stream"}
    assert codes(found(dataclasses.replace(cold, requests=lumped))) == set()


def test_with_one_stream_it_is_the_first_request(build: Any, found: Any, stretch: Any) -> None:
    run = build.run()
    (finding,) = found(stretch(run, build.leg_id(run, "oracle", 1, 1), ttft={0: 2.0}), "cold-first-requests")
    assert finding.message.startswith(
        "TTFT of the first request was 100.0 % above that of nine in ten of the later ones, or more"
    )


def test_the_first_of_a_scattered_leg_is_not_cold(build: Any, found: Any, stretch: Any) -> None:
    """Eleven at c1, the slowest first: a fifth above the median of the later ones, of which some are as slow."""
    run = build.run(workload={"requests_per_stream": 11})
    leg = build.leg_id(run, "oracle", 1, 1)
    scattered = {0: 1.2, 3: 1.15, 7: 1.18, 8: 1.1}
    assert codes(found(stretch(run, leg, ttft=scattered))) == set()
    assert codes(found(stretch(run, leg, ttft=scattered | {0: 1.35}))) == {("cold-first-requests", leg)}


def test_a_latency_voids_the_axes_that_it_speaks_for(build: Any, stretch: Any) -> None:
    """After a staggered start, a cold TTFT says nothing of TPOT."""
    run = build.run(protocol={"concurrency": (1, 2)}, workload={"requests_per_stream": 8, "start": "staggered"})
    leg = build.leg_id(run, "oracle", 1, 1)

    def axes(**factors: Any) -> set[str | None]:
        return {f.axis for f in check(Evidence.of(stretch(run, leg, **factors)))}

    both = {"e2el", "output_throughput", "total_throughput", "request_throughput"}
    assert axes(ttft={0: 2.0}) == {"ttft"} | both
    assert axes(itl={0: 2.0}) == {"tpot", "itl"} | both


def test_nine_in_ten_of_the_later_ones_were_faster() -> None:
    """Of 1 to 11 ms that is 10 ms."""
    assert excess([18.0, *map(float, range(1, 12))], 1) == pytest.approx(0.8, rel=1e-12)


def test_a_later_request_takes_no_first_ones_place(build: Any) -> None:
    """After a staggered start one of the first two has not half of its tokens when the last one is sent: it is not
    looked at, and the third is none of the first two."""
    run = build.run(workload={"requests_per_stream": 4, "start": "staggered"})
    (leg,) = [one for one in Evidence.of(run).legs if one.name == build.leg_id(run)]
    free, rows = [leg.row.start_ns, leg.row.start_ns + 5_000_000], []
    for request in leg.requests:
        stream = free.index(min(free))
        gap = {0: 30_000_000, 1: 900_000_000}.get(request.index, 10_000_000)
        stamps = tuple(free[stream] + 50_000_000 + k * gap for k in range(8))
        times = {"first_token_ns": stamps[0], "last_token_ns": stamps[-1], "end_ns": stamps[-1]}
        rows.append(request.model_copy(update=times | {"sent_ns": free[stream], "token_times_ns": stamps}))
        free[stream] = stamps[-1] + 1000
    kept = tuple(request for request in run.requests if request.leg_id != leg.name)
    findings = check(Evidence.of(dataclasses.replace(run, requests=(*kept, *rows))))
    made = {(finding.axis, finding.message.split(" of ")[0]) for finding in findings}
    assert {("tpot", "TPOT"), ("itl", "median ITL")} <= made


def test_a_first_prefill_that_stops_the_others_speaks_for_the_whole_leg(build: Any, stretch: Any) -> None:
    """With one stream there is no neighbour whose gaps it is in."""
    run = build.run(protocol={"concurrency": (1, 2)}, workload={"requests_per_stream": 8, "start": "staggered"})
    cold = stretch(run, build.leg_id(run, "oracle", 2, 1), ttft={0: 2.0, 1: 2.0})
    assert {f.axis for f in check(Evidence.of(cold))} == {None}
