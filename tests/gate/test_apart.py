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
from gate.report import markdown, plots, table
from gate.report.model import Cell, Report
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
    [(2.0, "PASS"), (1.06, "PASS"), (1.04, "VOID"), (1.0, "VOID"), (0.67, "VOID"), (0.64, "FAIL")],
)
def test_arms_apart_are_decided_without_a_ratio(build: Any, axis: str, ratio: float, expected: str) -> None:
    """The oracle's fastest legs have speed 1, its slowest 0.7; equal repetitions may be 5 % apart."""
    made = cell(judge(build.run(moved(ratio))), axis)
    assert made.verdict == expected
    assert {reason.code for reason in made.reasons} == {"spread", *(["below-floor"] if expected == "FAIL" else [])}
    numbers = (made.ratio, made.ratio_low, made.ratio_high, made.candidate_median, made.oracle_median)
    assert (*numbers, made.cycles_ratio, made.order_effect) == (None,) * 7
    bounds = {"PASS": (ratio, None), "VOID": (None, None), "FAIL": (None, ratio / 0.7)}[expected]
    assert (made.at_least, made.at_most) == tuple(None if b is None else pytest.approx(b, rel=1e-3) for b in bounds)
    assert made.bounded == (expected != "VOID")


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
    ("least", "most", "expected"),
    [(1.25, 3.0, "PASS"), (1.2499, 3.0, "VOID"), (0.3, 0.792, "VOID"), (0.3, 0.7919, "FAIL")],
)
def test_the_limits_are_the_floor_and_the_floor_less_the_band_by_more_than_repetitions_may_differ(
    build: Any, least: float, most: float, expected: str
) -> None:
    """A quarter here: 1.25, and 0.99 / 1.25."""
    findings = [build.finding()]
    made = verdict.cell(
        (0.0,) * 3,
        1.0,
        planned_pairs=3,
        floor=1.0,
        band=BAND,
        findings=findings,
        apart=Apart(least, most),
        max_spread=0.25,
    )
    assert (made.verdict, made.interval) == (expected, None)
    first, *_ = made.reasons
    assert (first.code == "below-floor") == (expected == "FAIL")
    assert made.reasons[-1:] == verdict.reasons_of(findings)


def test_a_bound_says_nothing_where_nothing_was_found() -> None:
    slow = (math.log(0.9),) * 3
    made = verdict.cell(slow, 0.9, planned_pairs=3, floor=1.0, band=BAND, findings=(), apart=Apart(2.0, 3.0))
    assert (made.verdict, made.apart) == (Verdict.FAIL, None)


def test_a_bound_below_the_floor_is_no_part_of_the_family(build: Any) -> None:
    """It has no p; and it takes none of the others' share of α."""
    bounded = verdict.cell(
        (), None, planned_pairs=3, floor=1.0, band=BAND, findings=[build.finding()], apart=Apart(0.2, 0.5)
    )
    slow = verdict.cell((math.log(0.98),) * 3, 0.98, planned_pairs=3, floor=1.0, band=BAND, findings=())
    assert verdict.family([bounded, slow], 1.0) == (bounded, slow)


def test_findings_of_movement_are_these() -> None:
    assert {"cold-first-requests", "warmup-unsettled", "spread"} == checks.MOVED_CODES


def test_a_bound_is_shown_as_one(build: Any) -> None:
    report = judge(build.run(moved(2.0)))
    made = cell(report)
    assert table.ratio_text(made) == "≥ 2.000‡"
    assert table.ratio_text(cell(judge(build.run(moved(0.4))))) == "≤ 0.571‡"
    (note,) = [note for note in table.footnotes(report.cells) if note.startswith("‡")]
    assert note.startswith("‡ Figures moved (spread), so no ratio can be believed; yet the arms lie apart.")
    assert "| ≥ 2.000‡ PASS |" in markdown.render(report)
    assert not [why for why in table.reasons(report) if why.code == "spread"]
    level = [one for one in report.cells if one.primary and one.concurrency == 2]
    assert "TPOT median ≥ 2.000" in plots._without_ratio(level).splitlines()


def test_a_bound_below_the_floor_says_what_was_needed(build: Any) -> None:
    report = judge(build.run(moved(0.4), protocol={"concurrency": (2,)}))
    (why,) = [why for why in table.reasons(report) if why.code == "below-floor"]
    assert why.message == "ratio at most 0.571 whatever moved, needed 0.990"
    (note,) = [note for note in table.footnotes(report.cells) if note.startswith("‡")]
    assert note.startswith("‡ Figures moved (spread), so")


def test_what_has_but_a_bound_is_not_compared(build: Any) -> None:
    assert figures(cell(judge(build.run(moved(2.0))))).candidate == ()
    assert figures(cell(judge(build.run(moved(2.0))), concurrency=1)).candidate != ()
