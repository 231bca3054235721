"""Requests to rates: mean and spread, a fault for what is not what was asked, and no mean over survivors."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gate.observe.rows import ARMS, Arm, RequestRow
from gate.plan import PlannedLeg
from gate.preflight import host_idle
from gate.selftest.good_run import make_plan, recipe
from gate.sweep import plots, text
from gate.sweep.judge import fault, rate, report
from gate.sweep.points import Point
from gate.sweep.record import SweepLeg, SweepPlan, SweepReport

MS = 1_000_000
PP, TG, DEEP = Point(kind="pp", tokens=100), Point(kind="tg", tokens=4), Point(kind="tg", tokens=4, depth=100)


def plan(*points: Point, arms: tuple[Arm, ...] = ARMS, repetitions: int = 2) -> SweepPlan:
    made = make_plan(recipe())
    legs = []
    for repetition in range(repetitions):
        for point in points:
            for arm in arms:
                leg = PlannedLeg(
                    leg_id=f"{len(legs)}",
                    order=len(legs),
                    arm=arm,
                    concurrency=1,
                    repetition=repetition,
                    requests=1,
                    prompts_sha256="p",
                    warmup_sha256="w",
                )
                legs.append(SweepLeg(leg=leg, point=point))
    return SweepPlan(
        name="n",
        host="box",
        started_at="x",
        machine={},
        recipe=made.recipe,
        coin="candidate",
        seed=0,
        arms=arms,
        candidate=made.candidate,
        oracle=made.oracle if "oracle" in arms else None,
        points=points,
        repetitions=repetitions,
        legs=tuple(legs),
    )


def answer(one: SweepLeg, step_ms: float, **over: Any) -> RequestRow:
    """First token after 10 steps, then one a step."""
    stamps = tuple(int((10 + k) * step_ms * MS) for k in range(one.point.output_tokens))
    fields: dict[str, Any] = {
        "leg_id": one.leg.leg_id,
        "arm": one.leg.arm,
        "concurrency": 1,
        "repetition": one.leg.repetition,
        "index": 0,
        "prompt_sha256": "p",
        "expected_prompt_tokens": one.point.prompt_tokens,
        "expected_output_tokens": one.point.output_tokens,
        "sent_ns": 0,
        "first_token_ns": stamps[0],
        "last_token_ns": stamps[-1],
        "token_times_ns": stamps,
        "tokens_per_event": (1,) * len(stamps),
        "prompt_tokens": one.point.prompt_tokens,
        "completion_tokens": one.point.output_tokens,
        "saw_done": True,
    }
    return RequestRow.model_validate(fields | over)


def swept(made: SweepPlan, **over: Any) -> SweepReport:
    """The candidate steps in 1 and 2 ms, the oracle in twice that; `over` alters the very first answer."""
    rows = [
        answer(one, (1 + one.leg.repetition) * (1 if one.leg.arm == "candidate" else 2), **({} if k else over))
        for k, one in enumerate(made.legs)
    ]
    return report(made, rows)


def test_means_spread_and_ratio_by_hand() -> None:
    """pp: 100 tokens in 10 and 20 ms, 10,000 and 5,000 tok/s; tg: a token in 1 and 2 ms, 1,000 and 500."""
    made = swept(plan(PP, TG, DEEP))
    assert made.complete
    prefill, decode, deep = made.cells
    assert [series.values for series in prefill.series] == [(10000, 5000), (5000, 2500)]
    assert [series.mean for series in prefill.series] == [7500, 3750]
    assert prefill.series[0].sd == pytest.approx(5000 / math.sqrt(2))
    assert prefill.ratio == 2
    assert [series.mean for series in decode.series] == [series.mean for series in deep.series] == [750, 375]


def stepped(made: SweepPlan, second_ms: float) -> SweepReport:
    """The oracle steps in 1 ms; the candidate too, and in the second repetition in second_ms."""
    return report(
        made,
        [answer(one, second_ms if (one.leg.arm, one.leg.repetition) == ("candidate", 1) else 1.0) for one in made.legs],
    )


def test_repetitions_that_spread_beyond_the_gates_limit_are_marked_everywhere() -> None:
    """10,000 and 8,000 tok/s: 2,000 over the median of 9,000."""
    made = stepped(plan(PP, TG), 1.25)
    why = "the candidate's repetitions spread 22.2 % (max − min over the median); expected at most 5 %"
    assert [cell.doubts for cell in made.cells] == [(why,), (why,)]
    assert text.rows(made)[0][0] == "pp100 †"
    for shown in (text.plain(made), text.markdown(made, ())):
        assert f"† not to be believed, pp100, tg4: {why}" in shown
    assert made.complete


def test_repetitions_within_it_are_not() -> None:
    made = stepped(plan(PP), 1.02)
    assert made.cells[0].doubts == ()
    assert "†" not in text.plain(made) + text.markdown(made, ())


def test_a_spread_of_exactly_the_limit_is_believed() -> None:
    """10,000, 5,000 and 10,000 tok/s: 5,000 over the median of 10,000."""
    for limit, doubted in ((0.5, 0), (0.49, 1)):
        made = plan(PP, repetitions=3)
        protocol = made.recipe.protocol.model_copy(update={"max_spread": limit})
        recipe_of = made.recipe.model_copy(update={"protocol": protocol})
        assert len(stepped(made.model_copy(update={"recipe": recipe_of}), 2.0).cells[0].doubts) == doubted


def test_on_a_busy_host_every_point_is_marked() -> None:
    (busy,) = host_idle.judge(1.0)
    other = busy.model_copy(update={"code": "clocks-held-back"})
    for found, doubts in ((busy, (busy.message,)), (other, ())):
        made = stepped(plan(PP, TG).model_copy(update={"findings": (found,)}), 1.0)
        assert [cell.doubts for cell in made.cells] == [doubts, doubts]
        assert made.findings == (found,)


def test_one_repetition_has_no_spread() -> None:
    (cell,) = swept(plan(PP, repetitions=1)).cells
    assert [(series.mean, series.sd) for series in cell.series] == [(10000, None), (5000, None)]


def test_the_candidate_alone_has_no_ratio() -> None:
    made = swept(plan(PP, arms=("candidate",)))
    assert made.cells[0].ratio is None
    assert text.head(made) == ("", "candidate")
    assert "ratio" not in text.plain(made)


@pytest.mark.parametrize(
    ("over", "why"),
    [
        ({"error": "HTTP 500: no"}, "HTTP 500: no"),
        ({"saw_done": False}, "the stream ended without [DONE]"),
        ({"prompt_tokens": 99}, "prompt tokens: 99, asked for 100"),
        ({"prompt_tokens": None}, "prompt tokens: not counted, asked for 100"),
        ({"completion_tokens": 2}, "output tokens: 2, asked for 1"),
        ({"cached_prompt_tokens": 16}, "16 prompt tokens came from a cache"),
    ],
)
def test_a_faulty_answer_has_no_rate_and_leaves_no_mean(over: dict[str, Any], why: str) -> None:
    made = swept(plan(PP), **over)
    (cell,) = made.cells
    ours, theirs = cell.series
    assert (ours.values, ours.mean, ours.sd, ours.faults) == ((None, 5000), None, None, (why,))
    assert (theirs.mean, cell.ratio, made.complete) == (3750, None, False)
    assert f"pp100, candidate: {why}" in text.plain(made)
    assert f"pp100, candidate: {why}" in text.markdown(made, ())


def test_two_good_answers_of_three_have_no_spread_either() -> None:
    (cell,) = swept(plan(PP, repetitions=3), error="HTTP 500: no").cells
    assert [value is None for value in cell.series[0].values] == [True, False, False]
    assert (cell.series[0].mean, cell.series[0].sd) == (None, None)


def test_a_good_answer_has_no_fault_and_the_rate_of_its_kind() -> None:
    for point, expected in ((PP, 10000), (TG, 1000)):
        row = answer(plan(point).legs[0], 1)
        assert (fault(point, row), rate(point, row)) == (None, expected)


def test_tokens_in_one_read_time_no_step() -> None:
    made = swept(plan(TG), token_times_ns=(10 * MS,) * 5)
    assert made.cells[0].series[0].faults == ("its tokens came in one read: no step can be timed",)


def test_what_was_not_measured_says_so() -> None:
    made = report(plan(PP), ())
    assert {series.faults for series in made.cells[0].series} == {("not measured",)}
    assert not made.complete
    assert plots.render(made) == {}


def test_a_plan_without_legs_has_no_mean_and_is_not_complete() -> None:
    made = report(plan(PP).model_copy(update={"legs": ()}), ())
    assert [(series.values, series.mean, series.sd) for series in made.cells[0].series] == [((), None, None)] * 2
    assert not made.complete


def test_why_it_ended_early_is_kept() -> None:
    assert report(plan(PP), (), "interrupted").ended == "interrupted"
    assert report(plan(PP), ()).ended is None


def test_plots_are_drawn_of_what_there_is_and_twice_alike() -> None:
    made = swept(plan(PP, TG, DEEP))
    drawn = plots.render(made)
    assert set(drawn) == {plots.PREFILL, plots.DECODE}
    assert drawn == plots.render(made)
    assert "prompt tokens" in drawn[plots.PREFILL]
    assert "depth" in drawn[plots.DECODE]
    assert set(plots.render(swept(plan(TG)))) == {plots.DECODE}


def test_the_table_has_a_row_for_each_point() -> None:
    lines = text.plain(swept(plan(PP, TG))).splitlines()
    assert lines[0] == "sweep of made-up on box, 2 repetitions"
    assert lines[3].split() == ["pp100", "†", "7500", "±", "3536", "3750", "±", "1768", "2.000"]
    assert lines[4].split()[0] == "tg4"
