"""The plan: order without favour, prompts without repeats, an id that changes with anything in it."""

from __future__ import annotations

import itertools
import json
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gate import recipe as recipes
from gate.errors import PreconditionError
from gate.observe.rows import Arm
from gate.plan import ArmPlan, Plan, Vocabulary, document_hash, leg_order, leg_prompts, make_plan, plan_hash
from gate.recipe import Workload

LEVELS = st.lists(st.integers(1, 64), min_size=1, max_size=5, unique=True).map(tuple)
COIN = st.sampled_from(["candidate", "oracle"])
RESIDENCY = st.sampled_from(["both", "alternate"])


def letters(levels: tuple[int, ...], repetitions: int, level: int) -> str:
    order = leg_order(levels, repetitions, "candidate", "both")
    return "".join("A" if arm == "candidate" else "B" for arm, concurrency, _ in order if concurrency == level)


@pytest.mark.parametrize(
    ("repetitions", "expected"), [(1, "AB"), (2, "ABBA"), (3, "ABBAAB"), (4, "ABBAABBA"), (5, "ABBAABBAAB")]
)
def test_blocks_are_palindromic(repetitions: int, expected: str) -> None:
    for level in (1, 2, 4):
        assert letters((1, 2, 4), repetitions, level) == expected


def test_levels_rotate_between_repetitions() -> None:
    order = leg_order((1, 2, 4), 3, "candidate", "both")
    firsts = [[c for arm, c, r in order if r == repetition and arm == "oracle"] for repetition in range(3)]
    assert firsts == [[1, 2, 4], [2, 4, 1], [4, 1, 2]]


def test_one_at_a_time_changes_arms_once_per_block() -> None:
    order = leg_order((1, 2, 4), 3, "oracle", "alternate")
    blocks = ["".join(arm[0] for arm, _, _ in group) for _, group in itertools.groupby(order, key=lambda leg: leg[0])]
    assert blocks == ["ooo", "cccccc", "oooooo", "ccc"]


def test_extra_blocks_go_on_where_the_planned_legs_end() -> None:
    plain, extra = small_plan(), small_plan(extra_blocks=1)
    assert [leg.leg_id for leg in extra.legs] == [leg.leg_id for leg in plain.legs]
    assert [leg.prompts_sha256 for leg in extra.legs] == [leg.prompts_sha256 for leg in plain.legs]
    assert [leg.order for leg in extra.all_legs] == list(range(len(extra.all_legs)))
    assert {leg.repetition for leg in extra.extra_legs} == {3, 4}
    level = extra.recipe.protocol.concurrency[0]
    order = "".join("A" if leg.arm == extra.coin else "B" for leg in extra.all_legs if leg.concurrency == level)
    assert order == "ABBAABBAAB"
    assert extra.plan_id != plain.plan_id
    prompts = leg_prompts(extra, extra.extra_legs[0], "timed")
    assert len(prompts) == extra.extra_legs[0].requests


@given(LEVELS, st.integers(1, 8), COIN, RESIDENCY)
@settings(max_examples=60)
def test_every_arm_once_per_level_and_repetition(
    levels: tuple[int, ...], repetitions: int, coin: Arm, residency: Literal["both", "alternate"]
) -> None:
    order = leg_order(levels, repetitions, coin, residency)
    assert sorted(order) == sorted(itertools.product(("candidate", "oracle"), levels, range(repetitions)))
    assert order[0][0] == coin


@given(LEVELS, st.integers(1, 4).map(lambda half: 2 * half), COIN)
@settings(max_examples=60)
def test_linear_drift_cancels_with_even_repetitions(levels: tuple[int, ...], repetitions: int, coin: Arm) -> None:
    order = leg_order(levels, repetitions, coin, "both")
    for level in levels:
        positions: dict[str, list[int]] = {"candidate": [], "oracle": []}
        for position, (arm, concurrency, _) in enumerate(order):
            if concurrency == level:
                positions[arm].append(position)
        assert sum(positions["candidate"]) == sum(positions["oracle"])


@given(LEVELS, st.integers(1, 7), COIN)
@settings(max_examples=60)
def test_linear_drift_never_exceeds_one_leg(levels: tuple[int, ...], repetitions: int, coin: Arm) -> None:
    order = leg_order(levels, repetitions, coin, "both")
    for level in levels:
        signed = [p if arm == "candidate" else -p for p, (arm, c, _) in enumerate(order) if c == level]
        assert abs(sum(signed)) <= 1


def arm_plan(arm: Arm, **changes: Any) -> ArmPlan:
    fields: dict[str, Any] = {
        "arm": arm,
        "kind": "command",
        "argv": ("server", "--port", "1"),
        "env": {"PATH": "/bin"},
        "url": "http://127.0.0.1:1",
        "model": "m",
        "checkpoint": "/m",
        "checkpoint_digest": "d" * 64,
    }
    return ArmPlan(**(fields | changes))


def small_plan(
    coin: Arm = "candidate", seed: int = 0, extra_blocks: int = 0, min_requests: int = 0, **candidate: Any
) -> Plan:
    recipe = recipes.parse(
        {
            "schema_version": 1,
            "name": "small",
            "checkpoint": {"path": "m"},
            "workload": {"prompt_tokens": 12, "output_tokens": 4, "min_requests_per_leg": min_requests},
            "protocol": {"concurrency": [1, 2], "repetitions": 3, "extra_blocks": extra_blocks},
        },
        "test",
    )
    return make_plan(
        recipe,
        coin=coin,
        seed=seed,
        candidate=arm_plan("candidate", **candidate),
        oracle=arm_plan("oracle"),
        vocabulary=Vocabulary(size=500, reserved=(0, 7)),
    )


def test_id_is_reproducible_and_changes_with_anything() -> None:
    plan = small_plan()
    assert plan.plan_id == small_plan().plan_id == plan_hash(plan)
    others = [
        small_plan(coin="oracle"),
        small_plan(seed=1),
        small_plan(min_requests=1),
        small_plan(env={"PATH": "/usr/bin"}),
        small_plan(argv=("server", "--port", "2")),
        small_plan(checkpoint_digest="e" * 64),
    ]
    assert len({plan.plan_id, *(other.plan_id for other in others)}) == 7


def test_id_survives_the_file() -> None:
    plan = small_plan()
    again = Plan.model_validate_json(plan.model_dump_json())
    assert (again, plan_hash(again)) == (plan, plan.plan_id)


def test_both_arms_get_the_same_prompts_and_no_prompt_comes_twice() -> None:
    plan = small_plan()
    seen: set[str] = set()
    for concurrency, repetition in itertools.product((1, 2), range(3)):
        pair = [leg for leg in plan.legs if (leg.concurrency, leg.repetition) == (concurrency, repetition)]
        assert {leg.arm for leg in pair} == {"candidate", "oracle"}
        assert len({(leg.prompts_sha256, leg.warmup_sha256) for leg in pair}) == 1
        prompts = [*leg_prompts(plan, pair[0], "timed"), *leg_prompts(plan, pair[0], "warmup")]
        assert len(prompts) == concurrency * 3
        assert not {0, 7} & {token for prompt in prompts for token in prompt.token_ids}
        assert not seen & {prompt.sha256 for prompt in prompts}
        seen |= {prompt.sha256 for prompt in prompts}


@pytest.mark.parametrize("phase", ["timed", "warmup"])
def test_prompts_that_are_not_the_planned_ones_are_refused(phase: Literal["timed", "warmup"]) -> None:
    plan = small_plan()
    field = "prompts_sha256" if phase == "timed" else "warmup_sha256"
    leg = plan.legs[0].model_copy(update={field: "0" * 64})
    with pytest.raises(PreconditionError, match=rf"the {phase} prompts of 000-candidate-c1-r0 have another digest"):
        leg_prompts(plan, leg, phase)


def test_leg_ids_say_what_they_are() -> None:
    assert [leg.leg_id for leg in small_plan().legs[:3]] == [
        "000-candidate-c1-r0",
        "001-oracle-c1-r0",
        "002-candidate-c2-r0",
    ]


@given(st.integers(1, 64), st.integers(1, 20), st.integers(0, 300))
def test_a_leg_has_the_fewest_requests_that_keep_both_numbers_and_all_streams_equal(
    concurrency: int, per_stream: int, least: int
) -> None:
    count = Workload(requests_per_stream=per_stream, min_requests_per_leg=least).requests(concurrency)
    allowed = [n for n in range(1, 2000) if n % concurrency == 0 and n >= per_stream * concurrency and n >= least]
    assert count == allowed[0]


@given(st.integers(1, 64), st.integers(1, 20))
def test_without_a_minimum_only_the_streams_count(concurrency: int, per_stream: int) -> None:
    assert Workload(requests_per_stream=per_stream).requests(concurrency) == per_stream * concurrency


@pytest.mark.parametrize(("least", "timed"), [(0, {1: 2, 2: 4}), (3, {1: 3, 2: 4}), (5, {1: 5, 2: 6})])
def test_the_minimum_counts_timed_requests_and_leaves_the_warm_up(least: int, timed: dict[int, int]) -> None:
    plan, plain = small_plan(min_requests=least, extra_blocks=1), small_plan(extra_blocks=1)
    assert {leg.concurrency: leg.requests for leg in plan.legs} == timed
    assert {leg.concurrency: leg.requests for leg in plan.extra_legs} == timed
    assert [leg.warmup_sha256 for leg in plan.all_legs] == [leg.warmup_sha256 for leg in plain.all_legs]
    for leg in plan.all_legs:
        sent = leg_prompts(plan, leg, "timed")
        assert len({prompt.sha256 for prompt in sent}) == len(sent) == leg.requests
        assert len(leg_prompts(plan, leg, "warmup")) == leg.concurrency


def test_a_plan_from_before_a_later_key_keeps_its_id_its_legs_and_its_prompts() -> None:
    plan = small_plan()
    document = plan.model_dump(mode="json")
    assert document["recipe"]["workload"].pop("min_requests_per_leg") == 0
    assert document["recipe"]["workload"].pop("start") == "together"
    document["plan_id"] = document_hash(document)
    old = Plan.model_validate_json(json.dumps(document))
    assert (old.plan_id, old.recipe, old.legs) == (document_hash(document), plan.recipe, plan.legs)
    assert [leg_prompts(old, leg, "timed") for leg in old.legs] == [
        leg_prompts(plan, leg, "timed") for leg in plan.legs
    ]
