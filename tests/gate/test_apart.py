"""Step 1b: figures moved, so there is no ratio; arms that lie apart all the same have a verdict and a bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from gate import checks, verdict
from gate.compare.figures import figures
from gate.judge import judge
from gate.observe.rows import Verdict
from gate.plan import PlannedLeg
from gate.report import html, jsonfile, markdown, plots, table, terminal
from gate.report.model import Cell, Report
from gate.selftest.time_faults import stretch
from gate.stats.apart import Apart
from gate.stats.band import assumed


def moved(ratio: float, *, by: float = 0.7) -> Callable[[PlannedLeg], float]:
    """Speeds: the candidate's, and an oracle whose second repetition at c2 was slower."""

    def speed(leg: PlannedLeg) -> float:
        if leg.arm == "candidate":
            return ratio
        return by if (leg.repetition, leg.concurrency) == (1, 2) else 1.0

    return speed


def cell(report: Report, axis: str = "tpot_median_ms", concurrency: int = 2) -> Cell:
    return next(one for one in report.cells if (one.axis, one.concurrency) == (axis, concurrency))


@pytest.mark.parametrize("axis", ["tpot_median_ms", "ttft_median_ms", "output_throughput"])
@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(2.0, "PASS"), (1.44, "PASS"), (1.42, "VOID"), (1.06, "VOID"), (0.67, "VOID"), (0.4, "VOID")],
)
def test_arms_apart_are_decided_without_a_ratio(build: Any, axis: str, ratio: float, expected: str) -> None:
    """The oracle's fastest legs have speed 1, its slowest 0.7: it moved by 43 %, and so much must lie between."""
    made = cell(judge(build.run(moved(ratio))), axis)
    assert made.verdict == expected
    assert {reason.code for reason in made.reasons} == {"spread"}
    numbers = (made.ratio, made.ratio_low, made.ratio_high, made.candidate_median, made.oracle_median)
    assert (*numbers, made.cycles_ratio, made.order_effect) == (None,) * 7
    assert made.at_least == (pytest.approx(ratio, rel=1e-3) if expected == "PASS" else None)
    assert made.bounded == (expected == "PASS")


def test_another_finding_is_no_movement(build: Any) -> None:
    run = build.run(moved(2.0))
    late = build.alter_leg(run, build.leg_id(run, "oracle", 2, 0), lock_held=False)
    assert (cell(judge(late)).verdict, cell(judge(late)).at_least) == (Verdict.VOID, None)


def test_a_missing_leg_leaves_it_void(build: Any) -> None:
    run = build.run(moved(2.0), protocol={"repetitions": 4})
    short = build.without_legs(run, build.leg_id(run, "candidate", 2, 3))
    assert cell(judge(run)).verdict is Verdict.PASS
    assert (cell(judge(short)).verdict, cell(judge(short)).at_least) == (Verdict.VOID, None)


def test_only_medians_of_requests_and_rates_have_a_bound(build: Any) -> None:
    report = judge(build.run(moved(2.0)))
    bounded = {one.axis for one in report.cells if one.bounded}
    assert bounded == {
        "output_throughput", "total_throughput", "request_throughput",
        "ttft_median_ms", "tpot_median_ms", "e2el_median_ms",
    }  # fmt: skip
    assert {one.verdict for one in report.cells if one.axis in ("tpot_mean_ms", "itl_median_ms") and not one.ratio} == {
        Verdict.VOID
    }


def test_a_level_where_nothing_moved_keeps_its_ratio(build: Any) -> None:
    made = cell(judge(build.run(moved(2.0))), concurrency=1)
    assert (made.verdict, made.ratio, made.at_least) == (Verdict.PASS, pytest.approx(2.0, rel=1e-3), None)


BAND = assumed(0.01)


@pytest.mark.parametrize(
    ("least", "found", "allowed", "expected"),
    [
        (1.25, 0.25, 0.05, "PASS"),
        (1.2499, 0.25, 0.05, "VOID"),
        (1.25, 0.05, 0.25, "PASS"),
        (1.2499, 0.05, 0.25, "VOID"),
        (0.3, 0.0, 0.0, "VOID"),
    ],
)
def test_the_limit_is_the_floor_and_what_moved_or_may_move(
    build: Any, least: float, found: float, allowed: float, expected: str
) -> None:
    findings = [build.finding()]
    made = verdict.cell(
        (0.0,) * 3,
        1.0,
        planned_pairs=3,
        floor=1.0,
        band=BAND,
        findings=findings,
        apart=Apart(least, found),
        max_spread=allowed,
    )
    assert (made.verdict, made.interval) == (expected, None)
    assert made.reasons == verdict.reasons_of(findings)


def test_a_bound_says_nothing_where_nothing_was_found() -> None:
    slow = (math.log(0.9),) * 3
    made = verdict.cell(slow, 0.9, planned_pairs=3, floor=1.0, band=BAND, findings=(), apart=Apart(2.0, 0.0))
    assert (made.verdict, made.apart) == (Verdict.FAIL, None)


def test_findings_of_movement_are_these() -> None:
    assert {"cold-first-requests", "warmup-unsettled", "spread"} == checks.MOVED_CODES


def test_a_bound_is_shown_as_one(build: Any) -> None:
    report = judge(build.run(moved(2.0)))
    made = cell(report)
    assert table.ratio_text(made) == "≥ 2.000‡"
    (note,) = [note for note in table.footnotes(report.cells) if note.startswith("‡")]
    assert note.startswith("‡ Figures moved (spread), so no ratio can be believed; yet the arms lie apart.")
    assert "| ≥ 2.000‡ PASS |" in markdown.render(report)
    assert not [why for why in table.reasons(report) if why.code == "spread"]
    level = [one for one in report.cells if one.primary and one.concurrency == 2]
    assert "TPOT median ≥ 2.000" in plots._without_ratio(level).splitlines()


def test_a_bound_is_rounded_down_everywhere_and_recorded_in_full(build: Any) -> None:
    """No printer says more than was proven: 1.2489 is no 1.249."""
    report = judge(build.run(moved(2.0)))
    bounds = {"at_least": 1.2489999}
    cells = tuple(one.model_copy(update=bounds) if one.bounded else one for one in report.cells)
    report = report.model_copy(update={"cells": cells})
    assert cell(report).at_least == 1.2489999
    level = [one for one in report.cells if one.primary and one.concurrency == 2]
    shown = (terminal.render(report), markdown.render(report), html.render(report), plots._without_ratio(level))
    for text in shown:
        assert "≥ 1.248" in text
        assert "1.249" not in text
    assert '"at_least": 1.2489999' in jsonfile.render(report)


def test_what_has_but_a_bound_is_not_compared(build: Any) -> None:
    assert figures(cell(judge(build.run(moved(2.0))))).candidate == ()
    assert figures(cell(judge(build.run(moved(2.0))), concurrency=1)).candidate != ()


def stretched(build: Any, candidate: float, requests: int, **factors: dict[int, float]) -> Report:
    """One stream; the candidate at this speed, and each of the oracle's legs stretched alike."""
    run = build.run(
        lambda leg: candidate if leg.arm == "candidate" else 1.0,
        protocol={"concurrency": (1,)},
        workload={"requests_per_stream": requests},
    )
    for leg in run.plan.legs:
        if leg.arm == "oracle":
            run = stretch(run, leg.leg_id, **factors)
    report: Report = judge(run)
    return report


def test_a_rate_is_not_bounded_by_legs_that_all_begin_cold(build: Any) -> None:
    """The oracle's first request waits for 5 s in each leg, and its steady pace is 1.67 of the candidate's."""
    made = cell(stretched(build, 0.6, 8, ttft={0: 100.0}), "request_throughput", 1)
    assert {reason.code for reason in made.reasons} == {"cold-first-requests"}
    assert made.candidate_values > made.oracle_values
    assert (made.verdict, made.at_least) == (Verdict.VOID, None)


@pytest.mark.parametrize(("candidate", "expected"), [(0.83, "VOID"), (1.04, "VOID"), (1.3, "PASS")])
def test_a_latency_that_still_falls_is_bounded_by_where_it_is_going(
    build: Any, candidate: float, expected: str
) -> None:
    """The oracle's gaps fall to a quarter in each leg: nine in ten of all are longer than where they end."""
    falling = {k: 4.0 - 3.0 * k / 15 for k in range(16)}
    made = cell(stretched(build, candidate, 16, itl=falling), "tpot_median_ms", 1)
    assert {reason.code for reason in made.reasons} == {"warmup-unsettled"}
    assert made.verdict == expected
    assert made.at_least == (pytest.approx(candidate, rel=1e-3) if expected == "PASS" else None)
