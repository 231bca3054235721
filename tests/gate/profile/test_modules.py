"""Golden: modules and bytes of the recorded tables; and what happens where launches match nothing, or too much."""

from __future__ import annotations

import pytest

from gate.profile.census import Module
from gate.profile.modules import FUSED, solve, with_modules
from gate.profile.rows import StepTable
from tests.gate.profile.tables import census, recorded


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
