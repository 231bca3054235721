"""Golden: the recorded tables of vLLM 0.25.0 on an H200 by family, and every rule with a name it is for."""

from __future__ import annotations

import pytest

from gate.profile.families import OTHER, PRODUCTS, RULES, TITLES, rule_of
from gate.profile.modules import HOME
from tests.gate.profile.tables import FIXTURES, fixture, recorded

DENSE_LAUNCHES = {
    "w4a16": 129,
    "fp8": 128,
    "norm_quant_act": 465,
    "bf16": 96,
    "attention": 33,
    "gdn_step": 48,
    "gdn_conv": 48,
    "kv_write": 16,
    "sampler_copies": 47,
}
DENSE_US = {
    1: (4861, 2120, 904, 301, 289, 266, 118, 72, 66),
    8: (4959, 2250, 915, 303, 463, 772, 120, 70, 68),
}
"""As the table of that day has them, µs a step, in the order of DENSE_LAUNCHES."""
MOE = {
    1: {"w4a16": (1355, 81), "moe_w4a16": (919, 80), "bf16": (642, 150), "fp8": (632, 80), "routing": (463, 160),
        "attention": (186, 21), "gdn_step": (157, 30), "gdn_conv": (74, 30), "kv_write": (45, 10)},
    8: {"w4a16": (1738, 81), "moe_w4a16": (2243, 80), "bf16": (631, 110), "fp8": (623, 80), "routing": (501, 160),
        "attention": (236, 21), "gdn_step": (335, 30), "gdn_conv": (76, 30), "kv_write": (44, 10)},
}  # fmt: skip
MOE_REST = {1: (529 + 425, 538), 8: (580 + 466, 538)}
"""Norms and activations with sampler and copies: that table counted act_and_mul with the copies, the rules do not."""
SUMS = {("27b", 1): (8996, 1010), ("27b", 8): (9920, 1010), ("35b", 1): (5427, 1180), ("35b", 8): (7474, 1140)}


def by_family(name: str) -> dict[str, tuple[float, float]]:
    table = recorded(name)
    families = {k.family for k in table.kernels}
    return {
        f: (sum(k.us for k in table.kernels if k.family == f), sum(k.launches for k in table.kernels if k.family == f))
        for f in families
    }


@pytest.mark.parametrize("batch", [1, 8])
def test_27b(batch: int) -> None:
    found = by_family(f"vllm-0.25.0-h200-27b-b{batch}")
    assert {family: launches for family, (_, launches) in found.items()} == DENSE_LAUNCHES
    assert tuple(round(found[family][0]) for family in DENSE_LAUNCHES) == DENSE_US[batch]


@pytest.mark.parametrize("batch", [1, 8])
def test_35b(batch: int) -> None:
    found = by_family(f"vllm-0.25.0-h200-35b-b{batch}")
    rest = [found.pop(family) for family in ("norm_quant_act", "sampler_copies")]
    assert {family: (pytest.approx(us, abs=0.6), n) for family, (us, n) in found.items()} == MOE[batch]
    us, launches = (sum(values) for values in zip(*rest, strict=True))
    assert (round(us), launches) == (pytest.approx(MOE_REST[batch][0], abs=1), MOE_REST[batch][1])


@pytest.mark.parametrize(("shape", "batch"), SUMS)
def test_a_table_keeps_its_sum(shape: str, batch: int) -> None:
    table = recorded(f"vllm-0.25.0-h200-{shape}-b{batch}")
    assert (round(table.sum_us), table.launches) == SUMS[shape, batch]


@pytest.mark.parametrize("table", sorted(path.stem for path in FIXTURES.glob("*-h200-*.json")))
def test_no_recorded_name_is_without_a_family(table: str) -> None:
    """But what ran equally often, which has none and is put with the copies (difference.py)."""
    names = [name for _, launches, name in fixture(table)["rows"] if launches]
    assert names
    for name in names:
        assert rule_of(name).family != OTHER, name


@pytest.mark.parametrize(
    ("name", "family", "helper"),
    [
        ("triton_red_fused__to_copy_add_clamp_copy__cutlass_scaled_mm_fused_add_rms_norm_5", "norm_quant_act", False),
        ("triton_poi_fused_marlin_gemm_mul_silu_slice_4", "norm_quant_act", False),
        ("void marlin::Marlin<1125899906909960l, 256, 1>(int4 const*)", "w4a16", False),
        ("void marlin_moe_wna16::Marlin<1125899906909960l>(int4 const*)", "moe_w4a16", False),
        ("nvjet_sm90_qqtst_64x8_64x16_2x1_v_bz_TNT", "fp8", False),
        ("nvjet_sm121_qqsss_64x8_TNT", "fp8", False),
        ("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_splitK_TNT", "bf16", False),
        ("void cublasLt::splitKreduce_kernel<32, 16>(Params)", "bf16", True),
        ("cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn_align8", "bf16", False),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16>(Params)", "bf16", False),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(Params)", "kv_write", False),
        ("void qk_norm_rope_kernel(RopeArgs)", "kv_write", False),
        ("void attention_decode_kernel<1>(AttentionArgs)", "attention", False),
        ("gdn_decode_kernel(GdnArgs)", "gdn_step", False),
        ("void skinny_kernel<W4A16<1>, 2>(SkinnyArgs)", "w4a16", False),
        ("void w4a16_wide_kernel<2>(WideArgs)", "w4a16", False),
        ("void skinny_kernel<W8A8<1>, 2>(SkinnyArgs)", "fp8", False),
        ("void grouped_kernel<1, true>(GroupedArgs)", "moe_w4a16", False),
        ("quantize_tokens_kernel(bf16 const*, float const*, unsigned char*, float*)", "norm_quant_act", False),
        ("void vllm::dynamic_per_token_scaled_fp8_quant_kernel_strided<bf16, e4m3>()", "norm_quant_act", False),
        ("void grouped_many_kernel<1>(GroupedArgs)", "moe_w4a16", False),
        ("void grouped_wide_kernel<2>(GroupedArgs)", "moe_w4a16", False),
        ("gdn_chunk_kernel(ChunkArgs)", "gdn_step", False),
        ("route_kernel(RouteArgs)", "routing", False),
        ("router_kernel(RouterArgs)", "routing", False),
        ("route_chunk_kernel(ManyRoutes)", "routing", False),
        ("route_layout_kernel(ManyRoutes)", "routing", False),
        ("spread_pairs_kernel(SpreadArgs)", "routing", False),
        ("void combine_pairs_kernel<8>(CombineArgs)", "routing", False),
        ("chunk_gated_delta_rule_fwd_chunk_kernel", "gdn_step", False),
        ("void add_norm_kernel<true>(NormArgs)", "norm_quant_act", False),
        ("argmax_kernel(uint4 const*)", "sampler_copies", False),
        ("Memcpy HtoD (Pinned -> Device)", "sampler_copies", False),
        ("some_kernel_nobody_has_seen", OTHER, False),
    ],
)
def test_a_name(name: str, family: str, helper: bool) -> None:
    assert (rule_of(name).family, rule_of(name).helper) == (family, helper)


def test_every_family_has_a_title() -> None:
    assert {rule.family for rule in RULES} | {OTHER} == set(TITLES)


def test_products_are_the_families_of_the_checkpoint_s_modules() -> None:
    """And the routed experts, whose modules run together."""
    assert {family for names in HOME.values() for family in names} | {"moe_w4a16"} == PRODUCTS
    assert TITLES.keys() > PRODUCTS
