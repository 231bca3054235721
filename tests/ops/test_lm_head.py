"""ops/lm_head against its fp32 specification: the logits are rounded to the activation dtype, then widened."""

from __future__ import annotations

import pytest
import torch

from engine.ops.linear import Budget, prepare
from engine.ops.lm_head import lm_head, naive
from engine.weights.types import DenseWeight


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_equal_the_specification(rows, dtype, generator):
    matrix = (torch.randn(61, 32, generator=generator) * 0.2).to(dtype)
    hidden = torch.randn(rows, 32, generator=generator).to(dtype)
    actual = lm_head(hidden, prepare(DenseWeight(matrix), dtype, Budget(0)))
    expected = naive.lm_head(hidden, matrix)
    assert actual.dtype == torch.float32
    assert torch.equal(actual, actual.to(dtype).float())
    torch.testing.assert_close(actual, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
