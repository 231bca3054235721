"""tests/ops/sanitized.txt has a test of every function of the kernels' library: a table that a person can check.

What the tests really called tools/sanitize.py says in its last line, on a device.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.kernels.build import ENGINE, exported, sources

LIST = Path(__file__).with_name("sanitized.txt")
REACHED_BY = {
    "engine_add_norm": "test_norm_cuda.py::test_add_norm_and_quantise[2-8-1]",
    "engine_add_norm_route": "test_norm_route_cuda.py::test_as_two_launches[8-8-8-1-random]",
    "engine_argmax": "test_sample_cuda.py::test_argmax[8-1]",
    "engine_attention_decode": "test_attention_cuda.py::test_decode[3-3-torch.bfloat16-1x1-1]",
    "engine_attention_gate": "test_prefill_cuda.py::test_attention_gate[1]",
    "engine_gdn_chunks": "test_prefill_cuda.py::test_gdn_over_a_run[compiled-200]",
    "engine_gdn_conv": "test_prefill_cuda.py::test_gdn_over_a_run[compiled-3]",
    "engine_gdn_decode": "test_gdn_cuda.py::test_three_steps_equal_the_reference[1-3-1]",
    "engine_gdn_gated_norm": "test_prefill_cuda.py::test_gdn_quantises_for_out_proj",
    "engine_gdn_scan": "test_prefill_cuda.py::test_gdn_over_a_run[compiled-64]",
    "engine_moe_combine": "test_moe_cuda.py::test_spread_and_combine[8-33]",
    "engine_moe_grouped": "test_moe_cuda.py::test_swiglu[512-2048-17-random]",
    "engine_moe_grouped_fp8": "test_moe_fp8_cuda.py::test_swiglu[512-2048-17-random]",
    "engine_moe_grouped_many": "test_moe_cuda.py::test_swiglu[48-512-257-ties]",
    "engine_moe_grouped_many_fp8": "test_moe_fp8_cuda.py::test_swiglu[48-640-200-ties]",
    "engine_moe_grouped_wide": "test_moe_cuda.py::test_swiglu_by_warpgroup_products[128-256-64-one]",
    "engine_quantize": "test_moe_fp8_cuda.py::test_codes_are_the_torch_path_s[None-2048-33]",
    "engine_moe_route": "test_moe_cuda.py::test_routing[8-8-1-random]",
    "engine_moe_route_many": "test_moe_cuda.py::test_routing_of_many[256-8-33-random]",
    "engine_moe_router": "test_router_cuda.py::test_of_awkward_logits[8-8-8-1-random]",
    "engine_moe_spread": "test_moe_cuda.py::test_spread_and_combine[8-33]",
    "engine_qk_norm_rope": "test_attention_cuda.py::test_qk_norm_rope_and_cache_write[3-3-torch.bfloat16-1]",
    "engine_swiglu": "test_prefill_cuda.py::test_swiglu[16-256-33]",
    "engine_w4a16_argmax": "test_w4a16_cuda.py::test_argmax[1-16-random]",
    "engine_w4a16_rows": "test_prefill_cuda.py::test_rows_are_the_dequantised_weight_to_the_bit[16-256]",
    "engine_w4a16_skinny": "test_w4a16_cuda.py::test_bf16[16-256-1]",
    "engine_w4a16_wide": "test_prefill_cuda.py::test_w4a16_by_warpgroup_products[256-256-17]",
    "engine_w8a8_rows": "test_prefill_cuda.py::test_rows_are_the_dequantised_weight_to_the_bit[16-256]",
    "engine_w8a8_skinny": "test_w8a8_cuda.py::test_bf16[16-128-1]",
}
NO_FUNCTION = {"engine_error"}
"""A code of the HTTP server's."""


def test_every_function_has_a_line_in_the_table() -> None:
    assert set(REACHED_BY) == {name for source in sources() for name in exported(source)}


def test_what_python_calls_is_such_a_function() -> None:
    """So that none is left out of the table by being declared otherwise than `exported` reads."""
    named = {name for path in ENGINE.rglob("*.py") for name in re.findall(r'"(engine_\w+)"', path.read_text())}
    assert named - NO_FUNCTION == set(REACHED_BY)


@pytest.mark.parametrize("function", REACHED_BY)
def test_the_list_has_its_test(function: str) -> None:
    assert f"tests/ops/{REACHED_BY[function]}" in LIST.read_text().splitlines()
