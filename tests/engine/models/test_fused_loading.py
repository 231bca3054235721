"""The CUDA model built from files, on a CPU: all that was shipped is resident once, packed, within 2 %."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import make_checkpoint
import pytest
import torch
from synthetic_weights import SHAPES, Recipe

from engine.census import take_census
from engine.models.config import load_text_config
from engine.models.fused import FusedForCausalLM, obstacle
from engine.models.layers import Source
from engine.ops.linear import Budget
from engine.ops.moe.cuda import Experts
from engine.ops.moe.fp8 import Fp8Experts
from engine.weights.loader import load_weights
from tests.engine.models import kernels_on_cpu

SMALL = {"layers": 4, "hidden": 1024, "vocab": 512, "heads": 4, "kv_heads": 1, "key_heads": 2, "value_heads": 4}
"""As the kernels take them: heads of 256 and 128, widths in multiples of 256."""
DENSE = replace(SHAPES["27b"], inter=1024, **SMALL)
MIXTURE = replace(SHAPES["35b"], inter=256, experts=6, top_k=2, **SMALL)


LAYOUTS = {
    "modelopt": ("modelopt", ()),
    "unsloth": ("compressed-tensors", ()),
    "older-unsloth": ("compressed-tensors-nvfp4", ()),
    "unquantised": ("modelopt", (("self_attn|linear_attn|lm_head", "bf16"),)),
    "four-bit": ("modelopt", (("self_attn|linear_attn", "nvfp4"),)),
    "mixed": (
        "modelopt",
        (("q_proj|in_proj_z|lm_head", "bf16"), ("v_proj|out_proj", "nvfp4")),
    ),
    "unsloth-mixed": (
        "compressed-tensors",
        ((r"\.mlp\.", "nvfp4"), ("in_proj_qkv|q_proj|lm_head", "bf16"), ("k_proj", "nvfp4")),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [DENSE, MIXTURE], ids=["dense", "mixture"])
def test_what_is_resident_is_the_checkpoint(monkeypatch, tmp_path: Path, shape, layout: str) -> None:
    kernels_on_cpu.install(monkeypatch)
    form, stored = LAYOUTS[layout]
    recipe = Recipe(shape, form, 0, distinct=True, w4a4=False, vision=False, mtp=True, stored=stored)
    make_checkpoint.write_checkpoint(recipe, tmp_path / "made", 50_000_000, torch.device("cpu"))
    config = load_text_config(tmp_path / "made")
    weights = load_weights(tmp_path / "made", config, "cpu")
    assert obstacle(weights, config, torch.bfloat16) is None
    with torch.inference_mode():
        model = FusedForCausalLM(Source(weights, config, torch.bfloat16, Budget(0)), 64, 2)
    census = take_census(model, weights)
    assert census.absent == ()
    assert census.widened == ()
    assert census.shipped_bytes == weights.checkpoint.text_bytes
    of_weights = census.resident_bytes - sum(sum(r.resident.values()) for r in census.rows if r.module == "space")
    assert of_weights < 1.02 * weights.checkpoint.text_bytes
    if layout == "unsloth" and config.is_moe:  # its last layer's experts are FP8, as late layers there are
        mixtures = [layer.mlp for layer in model.layers]
        assert [type(m.gate_up_proj) for m in mixtures] == [Experts] * 3 + [Fp8Experts]
        assert [type(m.down_proj) for m in mixtures] == [Experts] * 3 + [Fp8Experts]
        rows = {row.module: row.resident for row in census.rows}
        experts, inter, hidden = config.num_experts + 1, config.moe_intermediate_size, config.hidden_size
        codes, scales = 2 * experts * inter * hidden, 4 * 2 * experts * inter
        assert rows["layers.3.mlp.gate_up_proj"] == {"U8": codes, "F32": scales}
