"""client-saturated: the load generator measures the server, not itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.client_saturated import MAX_MERGED, by_kernel, cpu_share, lags, merged
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


def told_by_kernel(build: Any, lag_ms: float, run: Any = None) -> Any:
    """One leg's reads have the kernel's stamps, and its loop was late; its streams end after their last token."""
    run = run or build.run()
    leg = build.leg_id(run)
    end_ns = next(row.end_ns for row in run.legs if row.leg_id == leg) + 1
    for row in [r for r in run.requests if r.leg_id == leg]:
        run = build.alter_request(run, leg, row.index, end_ns=row.last_token_ns + 1)
    return build.alter_leg(run, leg, client_loop_lag_p99_ms=lag_ms, client_stamps="kernel", end_ns=end_ns)


@pytest.mark.parametrize("stamps", ["loop", None])
def test_loop_lag_voids_where_the_loop_told_the_time_and_in_older_records(build: Any, found: Any, stamps: Any) -> None:
    run = told_by_kernel(build, 3.51)
    assert late(found, run) == {}
    by_loop = build.alter_leg(run, build.leg_id(run), client_stamps=stamps)
    assert set(late(found, by_loop)) == {"itl", "ttft", "tpot"}


def test_what_the_kernel_told_is_not_moved_but_what_is_sent_late_is(build: Any, found: Any) -> None:
    assert found(told_by_kernel(build, 6.0)) == []
    (finding,) = found(told_by_kernel(build, 6.01))
    assert (finding.code, finding.axis) == ("client-saturated", None)
    assert "6.01 ms late at p99, 5 % of the median E2EL" in finding.message
    run = told_by_kernel(build, 0.1)
    leg = build.leg_id(run)
    busy = build.alter_leg(run, leg, client_cpu_s=0.31 * seconds(run, leg))
    assert [(f.axis, f.leg_id) for f in found(busy)] == [(None, leg)]


def test_in_an_open_loop_ttft_begins_when_the_loop_should_have_sent(build: Any, found: Any) -> None:
    run = build.run(workload={"arrival": "constant", "rate_per_stream": 2.0})
    leg = build.leg_id(run)
    due = {r.index: r.sent_ns for r in run.requests if r.leg_id == leg}
    run = told_by_kernel(build, 3.0, run)
    for index, sent_ns in due.items():
        assert late(found, run).keys() == ({"ttft"} if index else set())  # one such request is enough
        run = build.alter_request(run, leg, index, scheduled_ns=sent_ns)
    assert set(late(found, run)) == {"ttft"}


def of(requests: int, *streams: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return streams + ((10, 20, 30, 40),) * (requests - len(streams))


@pytest.mark.parametrize(
    ("streams", "ends", "ttft", "tpot", "itl"),
    [
        (of(50), 0, 0, 0, 0),
        (of(50, (10, 20, 20, 40)), 0, 0, 0, 1 / 200),
        (of(50, (20, 20, 30, 40)), 0, 1 / 50, 1 / 50, 1 / 200),
        (of(50, (20, 20, 20, 20)), 0, 1 / 50, 1 / 50, 3 / 200),
        (of(50, (10, 20, 40, 40)), 0, 0, 0, 1 / 200),
        (of(50), 1, 0, 1 / 50, 1 / 200),
        (of(50, (20, 20, 30, 40)), 1, 1 / 50, 1 / 50, 2 / 200),
        (of(50, (20, 20, 30, 40)), 2, 1 / 50, 2 / 50, 3 / 200),
        (of(50, (40, 40, 40, 40)), 1, 1 / 50, 1 / 50, 4 / 200),
        (of(2, ()), 0, 0, 0, 0),
    ],
)
def test_stamps_that_are_those_of_something_later(
    build: Any, streams: tuple[tuple[int, ...], ...], ends: int, ttft: float, tpot: float, itl: float
) -> None:
    """`ends`: how many of the first streams ended in the read of their last token."""
    leg = next(iter(Evidence.of(build.run()).legs))
    rows = tuple(
        leg.requests[0].model_copy(update={"token_times_ns": times, "end_ns": 40 if k < ends else 50})
        for k, times in enumerate(streams)
    )
    found = merged(dataclasses.replace(leg, requests=rows))
    assert found == pytest.approx({"ttft": ttft, "tpot": tpot, "itl": itl})


def test_a_leg_without_tokens_has_none(build: Any) -> None:
    leg = next(iter(Evidence.of(build.run()).legs))
    silent = tuple(r.model_copy(update={"token_times_ns": ()}) for r in leg.requests)
    assert merged(dataclasses.replace(leg, requests=silent)) == {}


def test_one_stamp_in_a_hundred_may_be_of_something_later(build: Any) -> None:
    leg = next(iter(Evidence.of(told_by_kernel(build, 1.0)).legs))
    kernel = leg.row.model_copy(update={"client_stamps": "kernel"})

    def families(requests: int, *streams: tuple[int, ...]) -> set[str]:
        rows = tuple(
            leg.requests[0].model_copy(update={"token_times_ns": times, "end_ns": 50})
            for times in of(requests, *streams)
        )
        return by_kernel(dataclasses.replace(leg, row=kernel, requests=rows))

    first, middle = (20, 20, 30, 40), (10, 20, 20, 40)
    assert MAX_MERGED == 0.01
    assert families(100, first) == {"ttft", "tpot", "itl"}
    assert families(99, first) == {"itl"}
    assert families(25, middle) == {"ttft", "tpot", "itl"}
    assert families(24, middle) == {"ttft", "tpot"}


def test_where_a_late_loop_found_more_in_its_reads_its_lag_counts_as_before(build: Any, found: Any) -> None:
    """Streams that end in the read of their last token: 1 stamp in 8 of the good run."""
    run = told_by_kernel(build, 3.0)
    leg = build.leg_id(run)
    for row in [r for r in run.requests if r.leg_id == leg]:
        run = build.alter_request(run, leg, row.index, end_ns=row.last_token_ns)
    assert set(late(found, run)) == {"itl"}
    assert set(late(found, build.alter_leg(run, leg, client_loop_lag_p99_ms=3.6))) == {"itl", "tpot"}
