"""Golden: modules and bytes of the recorded tables; and what happens where launches match nothing, or too much."""

from __future__ import annotations

from pathlib import Path

import pytest

from gate.observe.rows import Arm
from gate.profile import store
from gate.profile.census import Module
from gate.profile.conclude import derive
from gate.profile.modules import FUSED, solve, with_modules
from gate.profile.rows import StepKernel, StepTable
from tests.gate.profile.tables import RUN_27B, RUN_35B, census, recorded, unshaped


def table(shape: str, batch: int) -> StepTable:
    return with_modules(recorded(f"vllm-0.25.0-h200-{shape}-b{batch}"), census(shape, batch))


def family_bytes(found: StepTable, family: str) -> int:
    return sum(k.nbytes or 0 for k in found.kernels if k.family == family)


def test_27b_launches_are_its_layers() -> None:
    """64 layers, 48 with Gated DeltaNet and 16 with attention, and one lm_head."""
    notes = table("27b", 1).notes
    assert "w4a16: 129 launches = 1 lm_head + 64 mlp.down_proj + 64 mlp.gate_up_proj" in notes
    assert (
        "fp8: 128 launches = 48 linear_attn.in_proj_qkvz + 48 linear_attn.out_proj + 16 self_attn.o_proj + "
        "16 self_attn.qkv_proj" in notes
    )
    assert "bf16: 48 launches = 48 linear_attn.in_proj_ba" in notes  # its 48 split-K reductions are helpers
    assert "attention: 1 + 1 launches a layer in 16 layers = attention.kv" in notes


def test_27b_bytes_are_the_recorded_ones() -> None:
    """W4A16 10.34 GB at 2.13 TB/s, FP8 7.21 GB at 3.40 TB/s; 17.60 GB of weights a step."""
    found = table("27b", 1)
    w4a16, fp8 = family_bytes(found, "w4a16"), family_bytes(found, "fp8")
    assert (round(w4a16 / 1e9, 2), round(fp8 / 1e9, 2)) == (10.34, 7.21)
    us = {k.family: k.us for k in found.kernels if k.family in ("w4a16", "fp8")}
    assert (round(w4a16 / us["w4a16"] / 1e6, 2), round(fp8 / us["fp8"] / 1e6, 2)) == (2.13, 3.40)
    assert sum(m.nbytes for m in census("27b", 1) if m.scheme != "state") / 1e9 == pytest.approx(17.60, abs=5e-3)


@pytest.mark.parametrize(("batch", "gb"), [(1, 2.25), (8, 5.75), (32, 13.25)])
def test_35b_reads_the_experts_that_a_batch_touches(batch: int, gb: float) -> None:
    weights = [m for m in census("35b", batch) if m.scheme != "state"]
    assert sum(m.nbytes for m in weights) / 1e9 == pytest.approx(gb, abs=0.01)
    assert {m.estimated for m in weights if ".experts." in m.name} == {batch > 1}


@pytest.mark.parametrize("batch", [1, 8])
def test_35b_finds_lm_head_on_its_own(batch: int) -> None:
    """81 launches are 80 of the shared experts and one, in another kernel, of lm_head: each gets its own bytes."""
    found = [k for k in table("35b", batch).kernels if k.family == "w4a16"]
    assert {(k.launches, k.modules) for k in found} == {
        (80.0, ("mlp.shared_expert.down_proj", "mlp.shared_expert.gate_up_proj")),
        (1.0, ("lm_head",)),
    }
    assert not any(k.shared_bytes for k in found)


def test_two_kernels_that_could_be_either_share_their_bytes() -> None:
    """Batch 1 of the 35B: two MoE kernels of 40 launches each, gate_up and down, and no way to tell which is which."""
    found = [k for k in table("35b", 1).kernels if k.family == "moe_w4a16"]
    assert [k.modules for k in found] == [("mlp.experts.down_proj", "mlp.experts.gate_up_proj")] * 2
    assert found[0].shared_bytes
    assert [k.nbytes is None for k in found] == [False, True]


FP8_MODULES = {
    # run and grid: modules, GB/s
    (RUN_27B, "256x1x1"): (("linear_attn.in_proj_qkvz",), 3635),
    (RUN_27B, "224x1x1"): (("self_attn.qkv_proj",), 3482),
    (RUN_27B, "80x1x1"): (("linear_attn.out_proj", "self_attn.o_proj"), 2957),
    (RUN_35B, "192x1x1"): (("linear_attn.in_proj_qkvz",), 2388),
    (RUN_35B, "144x1x1"): (("self_attn.qkv_proj",), 2015),
    (RUN_35B, "32x1x1"): (("linear_attn.out_proj", "self_attn.o_proj"), 1494),
}
"""vLLM's, in tiles of 64 rows: 16384, 14336 and 5120 of them on the 27B."""


def step(run: Path, arm: Arm, modules: tuple[Module, ...]) -> tuple[StepKernel, ...]:
    """Kernels of a recorded run's step, with a census of modules that have rows, as the run's own had not yet."""
    derived = derive(store.read(run).model_copy(update={"census": modules}))
    found = derived.candidate if arm == "candidate" else derived.oracle
    assert found is not None
    return found.kernels


@pytest.mark.parametrize(("run", "shape"), [(RUN_27B, "27b"), (RUN_35B, "35b")], ids=["27b", "35b"])
def test_a_grid_tells_which_modules_a_kernel_runs(run: Path, shape: str) -> None:
    """By launches alone in_proj_qkvz could be out_proj, and qkv_proj o_proj."""
    found = [k for k in step(run, "oracle", census(shape, 1)) if k.family == "fp8"]
    assert {
        (run, k.name.rpartition("[grid ")[2].rstrip("]")): (k.modules, round((k.nbytes or 0) / k.us / 1e3))
        for k in found
    } == {key: row for key, row in FP8_MODULES.items() if key[0] == run}
    assert not any(k.shared_bytes for k in found)
    without = [k for k in step(run, "oracle", unshaped(shape, 1)) if k.family == "fp8"]
    assert [(len(k.modules), k.shared_bytes) for k in without] == [(4, True), (4, False), (4, False)]
    assert sum(k.nbytes or 0 for k in without) == sum(k.nbytes or 0 for k in found)


def with_kernels(kernels: list[StepKernel], modules: list[Module]) -> tuple[StepKernel, ...]:
    table = recorded("vllm-0.25.0-h200-27b-b1").model_copy(update={"kernels": tuple(kernels)})
    return with_modules(table, modules).kernels


def test_a_grid_of_the_device_s_size_tells_nothing() -> None:
    fp8 = [k for k in step(RUN_27B, "oracle", census("27b", 1)) if k.family == "fp8"]
    alike = [k.model_copy(update={"name": f"cutlass_3x_gemm_sm90_fp8 {k.launches:g} [grid 132x1x1]"}) for k in fp8]
    found = with_kernels(alike, [m for m in census("27b", 1) if m.scheme == "fp8"])
    assert [(len(k.modules), k.shared_bytes) for k in found] == [(4, True), (4, False), (4, False)]


def test_a_kernel_that_can_run_but_one_module_has_its_bytes_whatever_the_others_run() -> None:
    """The engine's gate_up and down run 64 times each, and lm_head once."""
    found = [k for k in step(RUN_27B, "candidate", unshaped("27b", 1)) if k.family == "w4a16"]
    both = ("mlp.down_proj", "mlp.gate_up_proj")
    assert [(k.launches, k.modules, k.nbytes, k.shared_bytes) for k in found] == [
        (64, both, 9_625_929_216, True),
        (64, both, None, False),
        (1, ("lm_head",), 715_161_608, False),
    ]


def test_of_too_many_ways_none_is_taken() -> None:
    """Eight modules and eight kernels of eight launches each: 40320 ways."""
    base = next(k for k in recorded("vllm-0.25.0-h200-27b-b1").kernels if k.family == "w4a16")
    kernels = [base.model_copy(update={"name": f"kernel {n}", "launches": 8.0}) for n in range(8)]
    found = with_kernels(kernels, [module(f"{letter}_proj", 8, "nvfp4") for letter in "abcdefgh"])
    assert [(len(k.modules), k.nbytes) for k in found] == [(8, 8)] + [(8, None)] * 7


def test_our_engine_folds_in_proj_ba_into_its_norm() -> None:
    found = with_modules(recorded("engine-h200-27b-b1-composed"), census("27b", 1))
    inside = "no launch of its own, so it runs inside another kernel"
    assert f"linear_attn.in_proj_ba: {inside}; no row counts its 47.2 MB" in found.notes
    assert f"gdn.conv_state: {inside}; no row counts its 5.9 MB" in found.notes


def test_launches_that_match_no_module_are_said_and_nothing_is_placed() -> None:
    one_more = recorded("vllm-0.25.0-h200-27b-b1")
    kernels = tuple(k.model_copy(update={"launches": 130.0}) if k.family == "w4a16" else k for k in one_more.kernels)
    found = with_modules(one_more.model_copy(update={"kernels": kernels}), census("27b", 1))
    assert any("no set of modules has the launches" in note and "w4a16 130" in note for note in found.notes)
    assert {k.modules for k in found.kernels if k.family in ("w4a16", "fp8")} == {()}
    assert {k.nbytes for k in found.kernels if k.family in ("w4a16", "fp8")} == {None}


def module(name: str, count: int, scheme: str, parts: int = 1) -> Module:
    return Module.model_validate({"name": name, "count": count, "parts": parts, "scheme": scheme, "nbytes": 1})


MLP = [module("mlp.gate_up_proj", 64, "nvfp4", 2), module("mlp.down_proj", 64, "nvfp4"), module("lm_head", 1, "nvfp4")]
NONE = {"w4a16": 0, "fp4": 0, "fp8": 0, "bf16": 0, "moe_w4a16": 0}


def placed(weights: list[Module], **launches: int) -> dict[str, list[str]] | None:
    found = solve(weights, NONE | launches)
    return None if found is None else {family: [c.module.name for c in chosen] for family, chosen in found.items()}


def test_projections_that_are_not_merged() -> None:
    """192 launches: gate and up on their own; and lm_head dequantised, in a BF16 product."""
    assert placed(MLP, w4a16=192, bf16=1) == {"w4a16": ["mlp.gate_up_proj", "mlp.down_proj"], "bf16": ["lm_head"]}


def test_two_ways_as_cheap_are_no_way() -> None:
    twins = [module("a_proj", 8, "nvfp4"), module("b_proj", 8, "nvfp4")]
    assert placed(twins, w4a16=8, fp4=8) is None
    assert placed(twins, w4a16=16) == {"w4a16": ["a_proj", "b_proj"]}


def test_a_tiny_module_may_run_inside_another_kernel_and_a_large_one_may_not() -> None:
    assert placed([module("linear_attn.in_proj_ba", 48, "bf16")]) == {FUSED: ["linear_attn.in_proj_ba"]}
    assert placed([module("lm_head", 1, "bf16")]) is None
