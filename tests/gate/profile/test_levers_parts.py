"""A lever's parts: which kernels belong together, its name, its bytes, and the sentence on what it rests on."""

from __future__ import annotations

from typing import Any

import pytest

from gate.observe.rows import Arm
from gate.profile.levers import FOLDS, Drift, attribute
from gate.profile.rows import Attribution, Lever, StepKernel, StepTable

STILL = Drift(0.0, "synthetic")
MLP = ("mlp.down_proj",)


def kernel(name: str, family: str, us: float, modules: tuple[str, ...] = (), **more: Any) -> StepKernel:
    """Launched 16 times a step, and put into its family by a rule of its own."""
    fields = {"name": name, "family": family, "rule": f"rule of {family}", "launches": 16.0, "us": us}
    return StepKernel.model_validate(fields | {"modules": modules} | more)


def table(arm: Arm, *kernels: StepKernel) -> StepTable:
    return StepTable(arm=arm, name=arm, batch=1, backend="nsys", tool="t", steps=128, kernels=kernels)


def attributed(
    ours: tuple[StepKernel, ...], theirs: tuple[StepKernel, ...], drift: Drift = STILL, doubtful: str = ""
) -> Attribution:
    return attribute(table("candidate", *ours), table("oracle", *theirs), drift, doubtful=doubtful)


def together(ours: tuple[StepKernel, ...], theirs: tuple[StepKernel, ...]) -> set[tuple[str, ...]]:
    """The families of each lever; the same, whichever arm has what."""
    made = [
        {tuple(sorted(lever.families)) for lever in attributed(*arms).levers}
        for arms in ((ours, theirs), (theirs, ours))
    ]
    assert made[0] == made[1]
    return made[0]


PRODUCT = kernel("p", "w4a16", 100.0, MLP)


@pytest.mark.parametrize(
    ("family", "into"),
    [
        ("gdn_conv", "gdn_step"),
        ("bf16", "norm_quant_act"),
        ("kv_write", "attention"),
        ("routing", "norm_quant_act"),
    ],
)
def test_what_one_arm_alone_launches_counts_where_its_work_went(family: str, into: str) -> None:
    """What both launch stays by itself, and so does what has nowhere to go."""
    alone, target = kernel("k", family, 10.0), kernel("t", into, 50.0)
    assert together((PRODUCT, target), (PRODUCT, target, alone)) == {("w4a16",), tuple(sorted((family, into)))}
    assert together((PRODUCT, target, alone), (PRODUCT, target, alone)) == {("w4a16",), (family,), (into,)}
    assert together((PRODUCT,), (PRODUCT, alone)) == {("w4a16",), (family,)}
    assert set(FOLDS) == {"gdn_conv", "bf16", "kv_write", "routing"}


def test_beside_an_arm_without_modules_nothing_is_folded() -> None:
    """Nothing tells there what its kernels hold."""
    target = kernel("t", "attention", 50.0)
    assert together((target,), (target, kernel("k", "kv_write", 10.0))) == {("attention",), ("kv_write",)}


def test_it_goes_to_the_other_arm_s_first_kernel_of_that_family() -> None:
    both = (kernel("a", "attention", 50.0, ("attention.kv",)), kernel("b", "attention", 5.0, ("draft.kv",)))
    levers = attributed(both, (*both, kernel("k", "kv_write", 3.0))).levers
    assert {lever.modules: lever.delta_us for lever in levers} == {("attention.kv",): -3.0, ("draft.kv",): 0.0}


def test_a_launch_of_more_than_shared_experts_is_not_one_of_them() -> None:
    routed = kernel("r", "moe_w4a16", 50.0, ("mlp.experts.down_proj",))
    mixed = kernel("m", "w4a16", 20.0, ("mlp.shared_expert.down_proj", "self_attn.o_proj"))
    assert together((routed,), (routed, mixed)) == {("moe_w4a16",), ("w4a16",)}


def test_a_launch_beside_products_goes_to_the_longest_of_them() -> None:
    """A reduction that is longer than any product it belongs to, and of no module itself."""
    step = (
        kernel("long", "bf16", 20.0, ("in_proj_ba",)),
        kernel("short", "bf16", 10.0, ("mlp.gate",)),
        kernel("reduction", "bf16", 30.0, helper=True),
    )
    levers = attributed(step, step).levers
    assert {lever.modules: lever.candidate_us for lever in levers} == {("in_proj_ba",): 50.0, ("mlp.gate",): 10.0}


def test_a_family_s_name_has_modules_where_it_is_spread_over_levers() -> None:
    def names(ours: tuple[StepKernel, ...], theirs: tuple[StepKernel, ...]) -> list[str]:
        return sorted(lever.name for lever in attributed(ours, theirs).levers)

    head = ("lm_head",)
    a_head = (kernel("a", "w4a16", 10.0, head), kernel("b", "fp8", 8.0, head))
    assert names(a_head[:1], a_head[1:]) == ["W4A16 products + FP8 W8A8 products"]
    placed, unplaced = kernel("a", "attention", 10.0, ("attention.kv",)), kernel("b", "attention", 10.0)
    assert names((placed,), (unplaced,)) == ["attention", "attention (attention.kv)"]


def test_a_lever_s_bytes_are_those_of_the_arm_that_moves_more() -> None:
    def nbytes(ours: tuple[int | None, ...], theirs: tuple[int | None, ...]) -> int | None:
        sides = [
            tuple(kernel(f"{arm}{n}", "w4a16", 10.0, MLP, nbytes=one) for n, one in enumerate(side))
            for arm, side in (("a", ours), ("b", theirs))
        ]
        (lever,) = attributed(sides[0], sides[1]).levers
        return lever.nbytes

    assert nbytes((100, 100, None), (150,)) == 200
    assert nbytes((150,), (100, 100, None)) == 200
    assert nbytes((None,), (None,)) is None


def test_an_arm_without_a_kernel_of_it_spends_nothing() -> None:
    """With own times, where a sum of none is no time that is not known."""
    both, alone = kernel("p", "w4a16", 9.0, MLP, own_us=9.0), kernel("q", "fp8", 5.0, ("lm_head",), own_us=4.0)
    found = {lever.families: lever for lever in attributed((both,), (both, alone)).levers}
    assert (found[("fp8",)].candidate_us, found[("fp8",)].oracle_us) == (0.0, 4.0)


def lever(ours: StepKernel, theirs: StepKernel, drift: Drift = STILL, doubtful: str = "") -> Lever:
    (made,) = attributed((ours,), (theirs,), drift, doubtful).levers
    return made


def test_each_proof_has_its_sentence() -> None:
    ours, theirs = kernel("a", "w4a16", 75.0, MLP), kernel("b", "w4a16", 100.0, MLP)
    unknown = Drift(None, "none")
    for drift, doubtful, proof, note in (
        (STILL, "", "launch counts", ""),
        (STILL, "too short", "unproven", "too short"),
        (unknown, "too short", "unproven", "too short; no drift control"),
        (unknown, "", "unproven", "no drift control"),
        (Drift(0.25, "x"), "", "below drift", "equal kernels moved by 25.00 %"),
        (Drift(0.24, "x"), "", "launch counts", ""),
    ):
        made = lever(ours, theirs, drift, doubtful)
        assert (made.proof, made.note) == (proof, note)
    made = lever(ours, ours.model_copy(update={"us": 100.0}))
    assert (made.proof, made.note) == ("same kernels", "")
    made = lever(kernel("a", "other", 75.0), kernel("b", "other", 100.0))
    assert (made.proof, made.note) == ("unproven", "2 names that no rule knows, first a")


def test_time_between_kernels_says_why_it_is_not_proven() -> None:
    kernels = (kernel("p", "w4a16", 9.0, MLP, own_us=9.0),)
    ours = table("candidate", *kernels).model_copy(update={"wall_us": 20.0, "idle_us": 5.0})
    theirs = table("oracle", *kernels).model_copy(update={"wall_us": 20.0, "idle_us": 9.0})
    (idle,) = [one for one in attribute(ours, theirs, STILL, doubtful="too short").levers if not one.families]
    assert (idle.proof, idle.note) == ("unproven", "too short")


@pytest.mark.parametrize(("launches", "proof"), [(1.0, "launch counts"), (2.0, "unproven"), (16.0, "unproven")])
@pytest.mark.parametrize("family", ["attention", "moe_w4a16", "fp4"])
def test_several_launches_without_a_module_are_unproven(family: str, launches: float, proof: str) -> None:
    """One launch a step is a piece of bookkeeping beside them."""
    made = lever(kernel("a", family, 75.0, launches=launches), kernel("b", family, 100.0, launches=launches))
    assert made.proof == proof
    assert proof != "unproven" or made.note == f"launches of a ({launches:g}) match no module"


def test_the_rules_are_named_of_what_no_launch_count_pairs() -> None:
    norm = kernel("n", "norm_quant_act", 20.0)
    folded = kernel("b", "bf16", 5.0, ("in_proj_ba",))
    levers = {one.families: one for one in attributed((PRODUCT, norm), (PRODUCT, norm, folded)).levers}
    made = levers[("norm_quant_act", "bf16")]
    assert (made.proof, made.note) == ("by family", "paired by the rules rule of norm_quant_act")
