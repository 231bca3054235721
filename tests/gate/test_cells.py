"""Cells: what the first look sees of a run that went on. More of the looks is in test_looks.py."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from gate import checks
from gate.calibration.apply import Noise
from gate.cells import cells, main_legs
from gate.checks.evidence import Evidence
from gate.judge import judge
from gate.observe.rows import Verdict
from gate.plan import PlannedLeg
from gate.report.model import Cell, Report
from gate.stats.band import Band, assumed
from gate.stats.interval import moderated
from gate.stats.pairs import log_ratios


def test_the_first_look_sees_no_record_of_an_extra_leg(build: Any) -> None:
    run = build.run()
    *kept, extra = run.plan.legs
    extended = dataclasses.replace(run, plan=run.plan.model_copy(update={"legs": tuple(kept), "extra_legs": (extra,)}))
    seen = main_legs(extended)
    for before, after in (
        (run.legs, seen.legs),
        (run.requests, seen.requests),
        (run.telemetry, seen.telemetry),
    ):
        assert any(row.leg_id == extra.leg_id for row in before)
        assert after == tuple(row for row in before if row.leg_id != extra.leg_id)


@pytest.mark.parametrize("arm", ["candidate", "oracle"])
def test_legs_that_fall_in_two_groups_are_told_of_their_arm(build: Any, arm: str) -> None:
    def speed(leg: PlannedLeg) -> float:
        return 1.02 if leg.arm == arm and leg.repetition % 2 else 1.0

    made = judge(build.run(speed, protocol={"repetitions": 4}))
    (cell,) = [one for one in made.cells if (one.axis, one.concurrency) == ("tpot_median_ms", 1)]
    (note,) = cell.notes
    assert note.startswith(f"the {arm}'s legs fall in two groups ")
    assert note.endswith(" (2 and 2 legs): their median describes neither")


def memory_of(build: Any, ours: float, *, unread: tuple[str, int, int] | None = None) -> Report:
    """Both arms' GPU memory, the candidate's in shares of the oracle's; `unread`: arm, level and repetition."""
    run = build.run()
    for row in run.legs:
        if (row.arm, row.concurrency, row.repetition) != unread:
            size = 1_000_000 * (ours if row.arm == "candidate" else 1.0)
            run = build.alter_leg(run, row.leg_id, gpu_peak_bytes=int(size))
    return judge(run)


def cell(report: Report, axis: str, concurrency: int = 2) -> Cell:
    return next(one for one in report.cells if (one.axis, one.concurrency) == (axis, concurrency))


@pytest.mark.parametrize("arm", ["candidate", "oracle"])
def test_memory_that_one_leg_lacks_was_read_all_the_same(build: Any, arm: str) -> None:
    found = cell(memory_of(build, 1.0, unread=(arm, 2, 1)), "peak_gpu_bytes")
    assert [reason.code for reason in found.reasons] == ["legs-missing"]
    assert "2 of 3 repetitions have a value in both arms" in found.reasons[0].message


def test_memory_that_was_read_and_decides_nothing_is_not_unreadable(build: Any) -> None:
    """0.6 % more: the interval lies across what is needed."""
    found = cell(memory_of(build, 1.006), "peak_gpu_bytes")
    assert (found.verdict, [reason.code for reason in found.reasons]) == (
        Verdict.INCONCLUSIVE,
        ["interval-straddles"],
    )


def test_an_axis_of_the_requests_without_a_value_was_not_measured(build: Any) -> None:
    """Nothing is said of memory."""
    run = build.run()
    theirs = [leg.leg_id for leg in run.legs if leg.arm == "oracle"]
    found = cell(judge(build.without_legs(run, *theirs)), "tpot_median_ms")
    assert [reason.code for reason in found.reasons] == ["unmeasured"]


def test_what_running_first_did_stands_beside_the_ratio(build: Any) -> None:
    """The leg that opens a repetition takes 1 / 0.97 of the time, whoever's it is; with one order none can tell."""

    def speed(leg: PlannedLeg) -> float:
        opens = (leg.arm == "candidate") == (leg.repetition % 2 == 0)
        return 0.97 if opens else 1.0

    assert cell(judge(build.run(speed)), "tpot_median_ms").order_effect == pytest.approx(-0.03, abs=1e-6)
    once = judge(build.run(speed, protocol={"repetitions": 1}))
    assert {one.order_effect for one in once.cells} == {None}


def test_a_ratio_in_cycles_is_of_times_and_needs_every_legs_clock(build: Any) -> None:
    """At one clock it is the ratio; of memory there is none."""
    run = build.run(lambda leg: 1.1 if leg.arm == "candidate" else 1.0)
    for row in run.legs:
        run = build.alter_leg(run, row.leg_id, gpu_peak_bytes=1)
    unread = judge(build.alter_telemetry(run, build.leg_id(run, "oracle"), "gpu0.sm_clock_mhz", None))
    assert unread.findings == ()
    assert cell(unread, "tpot_median_ms", 1).cycles_ratio == pytest.approx(1.1, rel=1e-6)
    assert cell(unread, "tpot_median_ms", 2).cycles_ratio is None
    assert cell(unread, "peak_gpu_bytes", 1).cycles_ratio is None


def test_nothing_stands_beside_a_void_cell(build: Any) -> None:
    run = build.run()
    report = judge(build.alter_leg(run, build.leg_id(run), lock_held=False))
    good, void = (cell(report, "tpot_median_ms", concurrency) for concurrency in (1, 2))
    assert void.verdict is Verdict.VOID
    assert (void.order_effect, void.cycles_ratio, void.notes) == (None, None, ())
    assert (good.order_effect, good.cycles_ratio) == (pytest.approx(0.0, abs=1e-9), pytest.approx(1.0, rel=1e-9))


def test_a_cell_carries_what_its_verdict_rests_on(build: Any) -> None:
    """Without a history of the host the prior is half the band; the interval is that of the pairs."""
    run = build.run(lambda leg: 0.97 if leg.arm == "candidate" else 1.0, protocol={"floor": 0.95, "band": 0.02})
    made = cell(judge(run), "tpot_median_ms")
    assert (made.floor, made.band, made.looks, made.primary) == (0.95, 0.02, 1, True)
    assert (made.prior, made.prior_sd, made.prior_df) == ("assumed", 0.01, 4.0)
    ours, theirs = made.candidate_values, made.oracle_values
    interval = moderated(log_ratios(ours, theirs, "lower"), assumed(0.02))
    assert interval is not None
    assert (made.ratio_low, made.ratio_high) == (math.exp(interval.low), math.exp(interval.high))
    assert (made.candidate_median, made.oracle_median) == (ours[0], theirs[0])
    assert made.ratio == pytest.approx(0.97, rel=1e-6)
    observed = cell(judge(run), "tpot_mean_ms")
    assert (observed.primary, observed.unit, observed.direction) == (False, "ms", "lower")


class Calibrated(Noise):
    """A host whose history knows every cell."""

    def band(self, *_cell: object) -> Band:
        return Band(self.share, 0.003, 3.0, "calibrated")


def test_a_cell_says_whose_noise_its_interval_has(build: Any) -> None:
    made = cells(Evidence.of(build.run()), (), Calibrated(0.02, None, ()))
    assert {(one.prior, one.prior_sd, one.prior_df, one.band) for one in made} == {("calibrated", 0.003, 3.0, 0.02)}


@pytest.mark.parametrize(("more", "verdict"), [((), Verdict.PASS), (("lock-lost",), Verdict.VOID)])
def test_arms_apart_are_decided_whichever_of_the_movements_was_found(
    build: Any, more: tuple[str, ...], verdict: Verdict
) -> None:
    """All of them here; anything else beside them is no movement."""
    run = build.run(lambda leg: 2.0 if leg.arm == "candidate" else 1.0)
    found = [build.finding(code=code, concurrency=2) for code in (*checks.MOVED_CODES, *more)]
    made = cells(Evidence.of(run), found, Noise(0.01, None, ()))
    (one,) = [one for one in made if (one.axis, one.concurrency) == ("tpot_median_ms", 2)]
    assert (one.verdict, one.ratio, one.bounded) == (verdict, None, verdict is Verdict.PASS)
