"""6 Kernel names to families: one ordered list for both arms, so that what cannot be paired by name is paired by rule.

Names are those that CUPTI reported for vLLM 0.25.0 on an H200 (Qwen3.6 27B and 35B-A3B) and for this project's engine,
and those of the GB10 logs in which vLLM's FP8 products ran as nvjet and its BF16 ones as gemv.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

OTHER = "other"
"""What no rule knows. A lever with such a kernel in it is unproven."""


@dataclass(frozen=True, slots=True)
class Rule:
    family: str
    pattern: str
    helper: bool = False
    """The second half of another launch."""


RULES: tuple[Rule, ...] = (
    # First, since Inductor puts the names of what it fused, products included, into its kernels' names.
    Rule("norm_quant_act", r"^triton_"),
    Rule("moe_w4a16", r"marlin_moe_wna16::Marlin<|grouped(_many|_wide)?_kernel"),
    Rule("w4a16", r"marlin::Marlin<|skinny_kernel<.*W4A16|w4a16_wide_kernel|\bgptq_marlin\b"),
    Rule("fp4", r"nvfp4.*gemm|fp4_gemm|cutlass.*nv_float4"),
    Rule("fp8", r"cutlass_3x_gemm_sm\d+_fp8|skinny_kernel<.*W8A8|nvjet_(sm\d+_)?qq|cutlass_scaled_mm_sm"),
    Rule("bf16", r"splitKreduce_kernel|reduce_1Block_kernel", helper=True),
    Rule("bf16", r"nvjet_(sm\d+_)?t|gemv|\bdot_kernel<|cutlass_\d\d_|cublas.*gemm|\bgemm\b.*bf16|ampere_bf16"),
    Rule("kv_write", r"reshape_and_cache|qk_norm_rope_kernel"),
    Rule("attention", r"flash|fmha|attention_decode_kernel|paged_attention"),
    # Before the chunks of Gated DeltaNet, one of whose rules its name would match.
    Rule("routing", r"topkGating|moe_align|moe_sum|expert_tokens|\brouter?_kernel|\broute_(chunk|layout)_kernel"),
    Rule("routing", r"\b(spread|combine)_pairs_kernel"),
    Rule("gdn_step", r"gated_delta_rule|gdn_decode_kernel|_chunk_kernel|_scan_kernel"),
    Rule("gdn_conv", r"causal_conv1d|gdn_conv_kernel"),
    Rule("norm_quant_act", r"rmsnorm|rms_norm|add_norm_kernel|act_and_mul|swiglu|gated_norm|attention_gate"),
    Rule("norm_quant_act", r"quantize_tokens_kernel|scaled_fp8_quant"),
    Rule("sampler_copies", r"[Mm]emcpy|[Mm]emset|at::native::|argmax|_slot_mapping_kernel|_rows_kernel|sampl"),
)
"""First match wins."""

TITLES = {
    "moe_w4a16": "routed experts, W4A16",
    "w4a16": "W4A16 products",
    "fp4": "FP4 products",
    "fp8": "FP8 W8A8 products",
    "bf16": "BF16 products, split-K",
    "kv_write": "KV write",
    "attention": "attention",
    "gdn_step": "GDN recurrent step",
    "gdn_conv": "GDN convolution",
    "routing": "expert routing",
    "norm_quant_act": "norms, quantisation, activations",
    "sampler_copies": "sampler, copies, elementwise",
    OTHER: "names that no rule knows",
}

PRODUCTS = frozenset({"moe_w4a16", "w4a16", "fp4", "fp8", "bf16"})
"""Families of matrix products: a step has as many launches of them as the model says, whatever a compiler fuses."""


@cache
def rule_of(name: str) -> Rule:
    """The first rule that matches; one with the family "other" where none does."""
    return next((rule for rule in RULES if re.search(rule.pattern, name)), Rule(OTHER, ""))
