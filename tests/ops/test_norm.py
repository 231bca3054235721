"""ops/norm against its fp32 specification."""

from __future__ import annotations

import pytest
import torch

from engine.ops import norm
from engine.ops.norm import naive

SHAPES = [(1, 1, 8), (3, 5, 128), (7, 1, 33)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float32_equals_the_specification(shape, generator):
    x, scale = torch.randn(shape, generator=generator), torch.rand(shape[-1], generator=generator) + 0.5
    torch.testing.assert_close(norm.rms_norm(x, scale, 1e-6), naive.rms_norm(x, scale, 1e-6), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bfloat16_is_the_specification_rounded_once(shape, generator):
    x, scale = torch.randn(shape, generator=generator).bfloat16(), torch.rand(shape[-1], generator=generator) + 0.5
    torch.testing.assert_close(
        norm.rms_norm(x, scale, 1e-6), naive.rms_norm(x, scale, 1e-6).bfloat16(), rtol=2**-7, atol=0
    )


def test_add_normalises_the_rounded_sum(generator):
    x, residual = torch.randn(2, 6, 64, generator=generator).bfloat16()
    scale = torch.ones(64)
    normed, total = norm.add_rms_norm(x, residual, scale, 1e-6)
    expected, expected_total = naive.add_rms_norm(x, residual, scale, 1e-6)
    assert torch.equal(total, expected_total)
    torch.testing.assert_close(normed, expected.bfloat16(), rtol=2**-7, atol=0)


def test_gate_comes_after_the_norm(generator):
    x, gate = torch.randn(2, 6, 3, 32, generator=generator)
    scale = torch.rand(32, generator=generator)
    actual = norm.gated_rms_norm(x, gate, scale, 1e-6)
    torch.testing.assert_close(actual, naive.gated_rms_norm(x, gate, scale, 1e-6), rtol=1e-5, atol=1e-6)
