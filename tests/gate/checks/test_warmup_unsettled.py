"""warmup-unsettled: a leg's figure must not depend on its length."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.evidence import Evidence
from gate.checks.latencies import OF_BOTH
from gate.checks.warmup_unsettled import check, drift, unqueued

LONG = {"workload": {"requests_per_stream": 8}}


def drifting(per_request: float, scatter: float = 0.0) -> dict[int, float]:
    """Factors of eight requests: each longer than the one before by a share of the first; ± scatter."""
    return {k: 1 + per_request * k + scatter * (-1) ** k for k in range(8)}


def unsettled(findings: Any) -> set[str]:
    return {f.leg_id for f in findings if f.code == "warmup-unsettled"}


@pytest.mark.parametrize("what", ["ttft", "itl"])
@pytest.mark.parametrize("sign", [1, -1], ids=["slower", "faster"])
def test_a_drift_beyond_the_spread_voids_the_leg(build: Any, found: Any, stretch: Any, what: str, sign: int) -> None:
    """Seven steps of 0.6 % are below 5 % of the mean, of 0.9 % above."""
    run = build.run(**LONG)
    leg = build.leg_id(run, "oracle", 1, 1)
    assert unsettled(found(stretch(run, leg, **{what: drifting(sign * 0.006)}))) == set()
    findings = found(stretch(run, leg, **{what: drifting(sign * 0.009)}), "warmup-unsettled")
    assert unsettled(findings) == {leg}
    name, share = {"ttft": "TTFT", "itl": "median ITL"}[what], "+6.0 %" if sign > 0 else "-6.4 %"
    assert f"{name} drifted by at least {share} over the leg; expected at most 5 %" in findings[0].message


@pytest.mark.parametrize(("spread", "void"), [(0.25, False), (0.125, True)])
def test_exactly_the_spread_is_allowed(build: Any, spread: float, void: bool) -> None:
    """TTFTs of 35, 40 and 45 ms at sends a second apart drift by 10 in 40."""
    run = build.run(workload={"requests_per_stream": 3}, protocol={"max_spread": spread})
    leg = build.leg_id(run, "oracle", 1, 1)

    def paced(row: Any) -> Any:
        sent = (10 + row.index) * 10**9
        first = sent + (35 + 5 * row.index) * 10**6
        stamps = tuple(first + k * 10**7 for k in range(8))
        times = {"sent_ns": sent, "first_token_ns": first, "last_token_ns": stamps[-1], "end_ns": stamps[-1]}
        return row.model_copy(update=times | {"token_times_ns": stamps})

    requests = tuple(paced(row) if row.leg_id == leg else row for row in run.requests)
    findings = list(check(Evidence.of(dataclasses.replace(run, requests=requests))))
    assert [finding.beyond for finding in findings] == ([2.0] if void else [])


def test_itl_is_looked_at_in_requests_that_queued_too(build: Any, found: Any, stretch: Any) -> None:
    """Both streams of c2 send at once: none of them waits alone."""
    run = build.run(**LONG)
    leg = build.leg_id(run, "oracle", 2, 1)
    slower = stretch(run, leg, itl={k: 1 + 0.005 * k for k in range(16)})
    assert [f.message[:10] for f in found(slower, "warmup-unsettled") if f.leg_id == leg] == ["median ITL"]


def test_a_buffered_stream_and_a_request_without_a_token_are_left_out(build: Any, stretch: Any) -> None:
    run = build.run(**LONG)
    leg = build.leg_id(run, "oracle", 1, 1)
    drifted = stretch(run, leg, drifting(0.03))
    assert unsettled(check(Evidence.of(drifted))) == {leg}

    def changed(update: Any) -> Any:
        rows = tuple(row.model_copy(update=update(row)) if row.leg_id == leg else row for row in drifted.requests)
        return dataclasses.replace(drifted, requests=rows)

    lumped = changed(lambda row: {"token_times_ns": (row.last_token_ns,) * 8})
    assert unsettled(check(Evidence.of(lumped))) == set()
    silent = {"first_token_ns": None, "last_token_ns": None, "token_times_ns": (), "tokens_per_event": ()}
    assert unsettled(check(Evidence.of(changed(lambda row: silent if row.index == 3 else {})))) == {leg}


def test_scatter_is_no_drift(build: Any, found: Any, stretch: Any) -> None:
    run = build.run(**LONG)
    leg = build.leg_id(run, "oracle", 1, 1)
    assert unsettled(found(stretch(run, leg, drifting(0.01, 0.02)))) == set()
    assert unsettled(found(stretch(run, leg, drifting(0.03, 0.02)))) == {leg}


def test_the_recipe_says_what_spread_is(build: Any, found: Any, stretch: Any) -> None:
    run = build.run(**LONG, protocol={"max_spread": 0.35})
    assert unsettled(found(stretch(run, build.leg_id(run, "oracle", 1, 1), drifting(0.04)))) == set()


def test_a_queue_that_builds_up_is_no_warm_up(build: Any, found: Any, stretch: Any) -> None:
    run = build.run(workload={"requests_per_stream": 8, "arrival": "poisson", "rate_per_stream": 3.0})
    assert unsettled(found(stretch(run, build.leg_id(run, "oracle", 1, 1), drifting(0.05)))) == set()


def test_two_requests_have_no_slope(build: Any, found: Any, stretch: Any) -> None:
    run = build.run()
    assert unsettled(found(stretch(run, build.leg_id(run, "oracle", 1, 1), drifting(0.9)))) == set()


def test_drift_is_what_the_line_says() -> None:
    assert drift([(0, 1.0), (1, 2.0), (2, 3.0)]) == pytest.approx(1.0)
    assert drift([(0, 1.0), (0.25, 2.0), (0.5, 3.0)]) == pytest.approx(1.0)
    assert drift([(0, 3.0), (1, 2.0), (2, 1.0)]) == pytest.approx(-1.0)
    assert drift([(0, 1.0), (1, 1.0), (2, 1.0)]) == 0
    assert drift([(0, 1.0), (1, 2.0), (2, 1.0)]) == 0
    assert drift([(0, 1.0), (1, 2.0)]) is None
    assert drift([(1, 1.0), (1, 2.0), (1, 3.0)]) is None
    assert drift([(0, 0.0), (1, 0.0), (2, 0.0)]) is None


def test_the_interval_is_that_of_least_squares() -> None:
    """Against scipy's own regression."""
    from scipy import stats

    points = [(0.0, 1.0), (1.0, 1.4), (2.0, 1.7), (3.0, 2.2), (4.0, 2.4)]
    xs, ys = zip(*points, strict=True)
    fit = stats.linregress(xs, ys)
    low = fit.slope - stats.t.ppf(0.995, 3) * fit.stderr
    assert drift(points) == pytest.approx(low * 4 / (sum(ys) / 5))


@pytest.mark.parametrize("start", ["together", "staggered"])
def test_ttft_is_compared_among_requests_that_waited_alone(build: Any, start: str) -> None:
    """Sixteen streams that begin together queue, and those that come one by one afterwards do not: no drift."""
    run = build.run(protocol={"concurrency": (1, 16)}, workload={"requests_per_stream": 2})
    workload = run.plan.recipe.workload.model_copy(update={"start": start})
    recipe = run.plan.recipe.model_copy(update={"workload": workload})
    run = dataclasses.replace(run, plan=run.plan.model_copy(update={"recipe": recipe}))
    leg = build.leg_id(run, "oracle", 16, 1)
    began = min(row.sent_ns for row in run.requests if row.leg_id == leg)

    def queued(row: Any) -> Any:
        wave, place = divmod(row.index, 16)
        sent = began + (wave * 4000 + wave * place * 110) * 10**6
        first = sent + (110 * (place + 1) if wave == 0 else 100) * 10**6
        stamps = tuple(first + k * 10**7 for k in range(8))
        times = {"sent_ns": sent, "first_token_ns": first, "last_token_ns": stamps[-1], "end_ns": stamps[-1]}
        return row.model_copy(update=times | {"token_times_ns": stamps})

    requests = tuple(queued(row) if row.leg_id == leg else row for row in run.requests)
    rows = [row for row in requests if row.leg_id == leg]
    assert len(unqueued(rows)) == 16
    everyone = [(row.sent_ns, float(row.first_token_ns - row.sent_ns)) for row in rows]
    assert abs(drift(everyone) or 0) > 0.5  # what it would say of all of them
    assert unsettled(check(Evidence.of(dataclasses.replace(run, requests=requests)))) == set()

    def slower(row: Any) -> Any:
        late = 4 * 10**6 * max(0, row.index - 16) if row.leg_id == leg else 0
        return row.model_copy(update={"first_token_ns": row.first_token_ns + late})

    drifting_ones = tuple(map(slower, requests))
    assert unsettled(check(Evidence.of(dataclasses.replace(run, requests=drifting_ones)))) == {leg}


def test_who_waited_alone(build: Any) -> None:
    row = build.run().requests[0]

    def wait(sent: int, first: int | None) -> Any:
        return row.model_copy(update={"sent_ns": sent, "first_token_ns": first})

    a, b, c, d = wait(0, 10), wait(10, 20), wait(19, 40), wait(41, 50)
    assert unqueued([d, c, b, a]) == [a, d]
    assert unqueued([a, b]) == [a, b]
    assert unqueued([wait(0, 100), wait(1, 2), wait(3, 4), d]) == []
    assert unqueued([wait(0, None), d]) == [d]
    assert unqueued([wait(0, 10), wait(0, 0), d]) == [wait(0, 0), wait(0, 10), d]
    assert unqueued([]) == []


@pytest.mark.parametrize(
    ("start", "slower", "void"), [("together", 0.0, True), ("staggered", 0.0, False), ("staggered", 0.02, True)]
)
def test_streams_that_end_one_by_one_are_no_drift_after_a_staggered_start(
    build: Any, start: str, slower: float, void: bool
) -> None:
    """Sixteen requests sent 25 ms apart: gaps of 10 ms, and of 2 once there is nothing left to send."""
    run = build.run(protocol={"concurrency": (1, 2)}, workload={"requests_per_stream": 8, "start": start})
    leg = build.leg_id(run, "oracle", 2, 1)
    began = min(row.sent_ns for row in run.requests if row.leg_id == leg)

    def paced(row: Any) -> Any:
        sent = began + row.index * 25 * 10**6
        stamps = [sent + 20 * 10**6]
        while len(stamps) < 8:
            gap = 10 if stamps[-1] < began + 15 * 25 * 10**6 else 2
            stamps.append(stamps[-1] + int(gap * 10**6 * (1 + slower * row.index)))
        times = {"sent_ns": sent, "first_token_ns": stamps[0], "last_token_ns": stamps[-1], "end_ns": stamps[-1]}
        return row.model_copy(update=times | {"token_times_ns": tuple(stamps)})

    requests = tuple(paced(row) if row.leg_id == leg else row for row in run.requests)
    findings = unsettled(check(Evidence.of(dataclasses.replace(run, requests=requests))))
    assert findings == ({leg} if void else set())


@pytest.mark.parametrize(
    ("what", "voided"),
    [("ttft", {"ttft"}), ("tpot", {"tpot"}), ("itl", {"itl", "tpot"})],
)
def test_after_a_staggered_start_each_latency_speaks_for_itself(build: Any, what: str, voided: set[str]) -> None:
    """One stream, eight requests a second apart, ten tokens each. `tpot`: one gap of each grows, not their median."""
    run = build.run(protocol={"concurrency": (1, 2)}, workload={"requests_per_stream": 8, "start": "staggered"})
    leg = build.leg_id(run, "oracle", 1, 1)

    def paced(row: Any) -> Any:
        grown = 1 + 0.1 * row.index
        sent = (10 + row.index) * 10**9
        first = sent + int(50 * 10**6 * (grown if what == "ttft" else 1))
        gaps = [10 * (grown if what == "itl" or (what == "tpot" and k == 2) else 1) for k in range(7)]
        gaps[2] *= 5 if what == "tpot" else 1
        stamps = [first + int(sum(gaps[:k]) * 10**6) for k in range(8)]
        times = {"sent_ns": sent, "first_token_ns": first, "last_token_ns": stamps[-1], "end_ns": stamps[-1]}
        return row.model_copy(update=times | {"token_times_ns": tuple(stamps)})

    requests = tuple(paced(row) if row.leg_id == leg else row for row in run.requests)
    findings = list(check(Evidence.of(dataclasses.replace(run, requests=requests))))
    assert {f.axis for f in findings} == {*voided, *OF_BOTH}
    assert {f.leg_id for f in findings} == {leg}
