"""What is sent: lengths within bounds, prompts distinct, the same again from the same seed, some left in the middle."""

from __future__ import annotations

from typing import Any

import pytest

from gate import recipe as recipes
from gate.errors import PreconditionError, UsageError
from gate.plan import ArmPlan, Plan, Vocabulary, make_plan
from gate.recipe import Recipe
from gate.tokenrun.plan import make_token_plan, planned_scenarios
from gate.tokenrun.scenario import CANCEL_EVERY, CHURN_PER_STREAM, Scenario, digest, scenarios


def recipe(concurrency: tuple[int, ...] = (4, 1), max_model_len: int = 300, **workload: Any) -> Recipe:
    return recipes.parse(
        {
            "schema_version": 1,
            "name": "small",
            "max_model_len": max_model_len,
            "checkpoint": {"path": "m"},
            "workload": {"prompt_tokens": 40, "output_tokens": 16, **workload},
            "protocol": {"concurrency": concurrency},
        },
        "t",
    )


def made(asked: Recipe | None = None, seeds: int = 2) -> tuple[Scenario, ...]:
    return scenarios(asked or recipe(), 500, (), seeds)


def test_both_kinds_at_every_level_with_every_seed_levels_ascending() -> None:
    names = [one.name for one in made()]
    assert names == [f"{kind}-c{c}-s{s}" for s in (0, 1) for c in (1, 4) for kind in ("long", "churn")]


def test_a_long_answer_is_four_times_the_recipes() -> None:
    long = made()[2]
    assert [(len(call.prompt.token_ids), call.asked, call.kept) for call in long.calls] == [(40, 64, 64)] * 4


@pytest.mark.parametrize(("room", "asked"), [(105, 64), (104, 63), (58, 17), (57, 16)])
def test_the_answer_and_one_token_more_fit_the_context(room: int, asked: int) -> None:
    assert made(recipe(max_model_len=room))[0].calls[0].asked == asked


def test_churning_requests_differ_in_length_and_every_fourth_is_left() -> None:
    churn = made()[3]
    assert len(churn.calls) == 4 * CHURN_PER_STREAM
    assert {len(call.prompt.token_ids) for call in churn.calls} <= {10, 20, 30, 40}
    assert {call.asked for call in churn.calls} <= {4, 8, 12, 16}
    assert len({call.asked for call in churn.calls}) > 1
    left = [call.prompt.index for call in churn.calls if call.cancelled]
    assert left == list(range(CANCEL_EVERY - 1, 16, CANCEL_EVERY))
    assert all(call.kept == call.asked // 2 for call in churn.calls if call.cancelled)
    assert all(call.kept == call.asked for call in churn.calls if not call.cancelled)


def test_no_prompt_is_cut_into_another() -> None:
    for one in made(recipe(max_common_prefix=12)):
        ids = [call.prompt.token_ids for call in one.calls]
        assert all(len(prompt) >= 13 for prompt in ids)
        assert len({prompt[:13] for prompt in ids}) == len(ids)
        assert len({call.prompt.sha256 for call in one.calls}) == len(ids)
        assert [call.prompt.index for call in one.calls] == list(range(len(ids)))


def test_one_token_is_still_an_answer() -> None:
    short = made(recipe(output_tokens=1))[1]
    assert {(call.asked, call.kept) for call in short.calls} == {(1, 1)}


def test_equal_seeds_give_equal_loads_and_others_do_not() -> None:
    assert [digest(one) for one in made()] == [digest(one) for one in made()]
    assert len({digest(one) for one in made()}) == len(made())
    assert digest(made()[0]) != digest(made(recipe(seed=1))[0])


def base(asked: Recipe | None = None) -> Plan:
    def arm(name: Any) -> ArmPlan:
        return ArmPlan(
            arm=name, kind="url", argv=None, env={}, url="http://x", model="", checkpoint="m", checkpoint_digest=None
        )

    return make_plan(
        asked or recipe(),
        coin="candidate",
        seed=0,
        candidate=arm("candidate"),
        oracle=arm("oracle"),
        vocabulary=Vocabulary(size=500),
    )


def test_a_plan_makes_its_loads_again_and_has_no_timed_legs() -> None:
    plan = make_token_plan(base(), repeats=2)
    assert [one.name for one in planned_scenarios(plan)] == [one.name for one in plan.scenarios]
    assert (plan.base.legs, plan.repeats, plan.seeds) == ((), 2, 2)
    assert plan.plan_id == make_token_plan(base(), repeats=2).plan_id != make_token_plan(base(), repeats=3).plan_id


def test_loads_that_are_not_the_planned_ones_are_refused() -> None:
    plan = make_token_plan(base())
    other = plan.model_copy(update={"base": base(recipe(seed=5)).model_copy(update={"seed": 5})})
    with pytest.raises(PreconditionError, match="other digests than planned"):
        planned_scenarios(other)


@pytest.mark.parametrize(("repeats", "fits"), [(0, False), (1, True), (20, True), (21, False)])
def test_repeats_have_bounds(repeats: int, fits: bool) -> None:
    if fits:
        assert make_token_plan(base(), repeats).repeats == repeats
    else:
        with pytest.raises(UsageError, match=f"--repeats {repeats}"):
            make_token_plan(base(), repeats)
