"""ops/rope against complex multiplication and transformers' table."""

from __future__ import annotations

import torch
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

from engine.ops import rope
from engine.ops.rope import naive


def test_rotation_equals_complex_multiplication(generator):
    x = torch.randn(9, 3, 64, generator=generator)
    rows = rope.table(100, 16, 1e7, torch.float32)[torch.arange(9) * 11]
    torch.testing.assert_close(rope.apply(x, rows), naive.apply(x, rows), rtol=1e-5, atol=1e-6)


def test_rest_of_the_head_passes_through(generator):
    x = torch.randn(4, 2, 64, generator=generator).bfloat16()
    rows = rope.table(50, 16, 1e7, torch.bfloat16)[46:]
    assert torch.equal(rope.apply(x, rows)[..., 16:], x[..., 16:])


def test_table_equals_transformers_far_out():
    config = Qwen3_5TextConfig(
        head_dim=64,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
        },
    )
    positions = torch.tensor([0, 1, 77, 4095])
    cos, sin = Qwen3_5TextRotaryEmbedding(config)(torch.empty(1, dtype=torch.float32), positions[None, None])
    rows = rope.table(4096, 16, 1e7, torch.float32)[positions]
    torch.testing.assert_close(rows, torch.cat((cos[0, :, :8], sin[0, :, :8]), -1), rtol=0, atol=1e-6)
