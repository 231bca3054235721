"""Extra blocks: planned, due only where the planned repetitions leave a primary cell undecided, decided by records."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from gate.checks.evidence import Evidence
from gate.judge import judge
from gate.looks import due
from gate.observe.rows import Verdict
from gate.observe.rundata import RunData
from gate.plan import PlannedLeg
from gate.report.model import Cell, Report
from gate.selftest.time_faults import stretch

MAIN = 3
UNDECIDED = 0.994
"""At 99 % neither PASS nor FAIL with the assumed prior: interval 0.985 to 1.003."""


def run(
    build: Any, speed: Callable[[PlannedLeg], float], *, extra_at: tuple[int, ...] = (), requests_per_stream: int = 2
) -> RunData:
    """Three repetitions and one extra block, planned; the block ran at the concurrencies given."""
    workload = {"requests_per_stream": requests_per_stream}
    whole = build.run(speed, protocol={"repetitions": MAIN + 2}, workload=workload)
    protocol = whole.plan.recipe.protocol.model_copy(update={"repetitions": MAIN, "extra_blocks": 1})
    plan = whole.plan.model_copy(
        update={
            "recipe": whole.plan.recipe.model_copy(update={"protocol": protocol}),
            "legs": tuple(leg for leg in whole.plan.legs if leg.repetition < MAIN),
            "extra_legs": tuple(leg for leg in whole.plan.legs if leg.repetition >= MAIN),
        }
    )
    unrun = [leg.leg_id for leg in plan.extra_legs if leg.concurrency not in extra_at]
    made: RunData = build.without_legs(dataclasses.replace(whole, plan=plan), *unrun)
    return made


def at(concurrency: int, ratio: float) -> Callable[[PlannedLeg], float]:
    return lambda leg: ratio if leg.arm == "candidate" and leg.concurrency == concurrency else 1.0


def cell(report: Report, concurrency: int, axis: str = "tpot_median_ms") -> Cell:
    return next(c for c in report.cells if (c.axis, c.concurrency) == (axis, concurrency))


def test_a_decided_run_needs_no_more(build: Any) -> None:
    assert due(run(build, at(2, 1.0))) == ()
    assert due(run(build, at(2, 0.9))) == ()


def test_an_undecided_level_gets_its_block_and_no_other(build: Any) -> None:
    made = run(build, at(2, UNDECIDED))
    assert [leg.leg_id for leg in due(made)] == [leg.leg_id for leg in made.plan.extra_legs if leg.concurrency == 2]
    assert [leg.arm for leg in due(made)] == ["oracle", "candidate", "candidate", "oracle"]


def test_nothing_is_due_before_the_planned_legs_are_done_or_where_none_are_declared(build: Any) -> None:
    made = run(build, at(2, UNDECIDED))
    assert due(build.without_legs(made, made.plan.legs[-1].leg_id)) == ()
    assert due(dataclasses.replace(made, plan=made.plan.model_copy(update={"extra_legs": ()}))) == ()


def test_what_was_not_measured_is_not_mended_by_repetition(build: Any) -> None:
    made = run(build, at(2, 1.0))
    silent = tuple(
        row.model_copy(update={"tokens_per_event": ()}) if row.concurrency == 2 and row.repetition == 0 else row
        for row in made.requests
    )
    assert due(dataclasses.replace(made, requests=silent)) == ()


def test_the_answer_is_the_same_with_the_blocks_on_disk(build: Any) -> None:
    """So a run that was killed in its extra block goes on with it, and the report finds that it was due."""
    before, after = run(build, at(2, UNDECIDED)), run(build, at(2, UNDECIDED), extra_at=(2,))
    assert due(before) == due(after) != ()
    half = build.without_legs(after, due(after)[-1].leg_id)
    assert due(half) == due(after)


def test_the_first_look_asks_for_more_confidence(build: Any) -> None:
    """0.3 % below the floor passes a single look, at 95 %, and not the first of two, at 99 %."""
    one = build.run(at(2, 0.997))
    assert cell(judge(one), 2).verdict is Verdict.PASS
    first = cell(judge(run(build, at(2, 0.997))), 2)
    assert (first.verdict, first.looks) == (Verdict.INCONCLUSIVE, 1)


def test_the_second_look_rests_on_all_repetitions(build: Any) -> None:
    report = judge(run(build, at(2, 0.997), extra_at=(2,)))
    second, other = cell(report, 2), cell(report, 1)
    assert (second.verdict, second.looks, len(second.candidate_values)) == (Verdict.PASS, 2, 5)
    assert (other.verdict, other.looks, len(other.candidate_values)) == (Verdict.PASS, 1, 3)
    assert report.complete
    assert report.repetitions == MAIN


def test_what_the_first_look_decided_stays(build: Any) -> None:
    """The extra legs would turn it round."""

    def speed(leg: PlannedLeg) -> float:
        return 1.0 if leg.arm == "oracle" or leg.repetition < MAIN else 0.96

    decided = cell(judge(run(build, speed, extra_at=(2,))), 2)
    assert (decided.verdict, decided.looks, decided.ratio) == (Verdict.PASS, 1, pytest.approx(1.0))
    assert len(decided.candidate_values) == MAIN


def test_a_level_without_extra_legs_has_one_look(build: Any) -> None:
    """0.3 % below the floor would pass at the second look's confidence, with the same three repetitions."""
    report = judge(run(build, lambda leg: 0.997 if leg.arm == "candidate" else 1.0, extra_at=(2,)))
    assert (cell(report, 2).verdict, cell(report, 2).looks) == (Verdict.PASS, 2)
    assert (cell(report, 1).verdict, cell(report, 1).looks) == (Verdict.INCONCLUSIVE, 1)


def test_the_second_look_asks_for_less_confidence_than_the_first(build: Any) -> None:
    """Five pairs of 0.55 % below the floor: the low end is 0.9907 at 96 % and 0.9892 at 99 %."""
    assert cell(judge(run(build, at(2, 0.9945), extra_at=(2,))), 2).verdict is Verdict.PASS


def test_a_level_that_the_first_look_voids_is_not_looked_at_again(build: Any) -> None:
    made = run(build, at(2, UNDECIDED), extra_at=(2,))
    report = judge(build.alter_leg(made, build.leg_id(made, "oracle", 2, 1), lock_held=False))
    assert (cell(report, 2).verdict, cell(report, 2).looks) == (Verdict.VOID, 1)


def test_a_void_extra_leg_voids_its_level(build: Any) -> None:
    made = run(build, at(2, UNDECIDED), extra_at=(2,))
    report = judge(build.alter_leg(made, due(made)[0].leg_id, lock_held=False))
    assert (cell(report, 2).verdict, cell(report, 2).looks) == (Verdict.VOID, 2)
    assert (cell(report, 1).verdict, cell(report, 1).looks) == (Verdict.PASS, 1)


def test_a_void_extra_leg_takes_a_decision_back(build: Any) -> None:
    made = run(build, at(2, 1.0), extra_at=(2,))
    assert cell(judge(made), 2).verdict is Verdict.PASS
    extra = next(leg for leg in made.plan.extra_legs if leg.concurrency == 2)
    assert cell(judge(build.alter_leg(made, extra.leg_id, lock_held=False)), 2).verdict is Verdict.VOID


def test_a_block_that_was_cut_off_decides_nothing(build: Any) -> None:
    made = run(build, at(2, UNDECIDED), extra_at=(2,))
    half = dataclasses.replace(build.without_legs(made, due(made)[-1].leg_id), finished_at=None)
    report = judge(half)
    assert cell(report, 2).reasons[0].code == "legs-missing"
    assert not report.complete
    assert [leg.leg_id for leg in Evidence.of(half).missing] == [due(made)[-1].leg_id]


def test_the_ids_of_an_extra_block_do_not_stand_in_for_those_that_are_missing(build: Any) -> None:
    made = run(build, at(2, UNDECIDED), extra_at=(2,))
    silent = tuple(
        row.model_copy(update={"token_ids": None})
        if (row.concurrency, row.arm, row.repetition) == (2, "candidate", 0)
        else row
        for row in made.requests
    )
    tokens = {one.concurrency: one for one in judge(dataclasses.replace(made, requests=silent)).tokens}
    assert (tokens[1].verdict, tokens[2].verdict) == (Verdict.PASS, Verdict.INCONCLUSIVE)
    assert [reason.message for reason in tokens[2].reasons] == ["16 of 20 planned sequences could be compared"]


def test_extra_legs_that_moved_leave_a_decided_cell_its_verdict_and_no_ratio(build: Any) -> None:
    """The candidate is twice as fast throughout; the oracle's first extra leg is slower than its others."""

    def speed(leg: PlannedLeg) -> float:
        moved = (leg.arm, leg.concurrency, leg.repetition) == ("oracle", 2, MAIN)
        return 2.0 if leg.arm == "candidate" else 0.7 if moved else 1.0

    assert cell(judge(run(build, speed)), 2).ratio == pytest.approx(2.0, rel=1e-3)
    made = cell(judge(run(build, speed, extra_at=(2,))), 2)
    assert (made.verdict, made.looks, made.ratio) == (Verdict.PASS, 2, None)
    assert made.at_least == pytest.approx(2.0, rel=1e-3)


def test_arms_apart_are_told_by_the_requests_of_the_looks_own_legs(build: Any) -> None:
    """Two of 18 requests are more than a slow tenth; of the 30 with the extra legs they would not be."""

    def speed(leg: PlannedLeg) -> float:
        moved = (leg.arm, leg.concurrency, leg.repetition) == ("oracle", 2, 1)
        return 2.0 if leg.arm == "candidate" else 0.7 if moved else 1.0

    made = run(build, speed, extra_at=(2,), requests_per_stream=3)
    assert cell(judge(made), 2, "ttft_median_ms").verdict is Verdict.PASS
    for repetition in (0, 1):
        made = stretch(made, build.leg_id(made, "candidate", 2, repetition), ttft={4: 3.0})
    found = cell(judge(made), 2, "ttft_median_ms")
    assert (found.verdict, found.looks, found.bounded) == (Verdict.VOID, 1, False)
    assert cell(judge(made), 2).verdict is Verdict.PASS
