"""The three products in fp32 from the shipped tensors, with nothing folded and nothing cached."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.weights.types import Fp8Weight, Weight


def linear(x: Tensor, weight: Weight) -> Tensor:
    """[tokens, K] -> fp32 [tokens, N], before the one rounding to the activation dtype."""
    x = x.float()
    if not isinstance(weight, Fp8Weight):
        return x @ weight.dequantize(torch.float32).T
    if weight.input_scale is not None:
        input_scale = weight.input_scale.reshape(1, 1)
    else:
        input_scale = (x.abs().amax(-1, keepdim=True) / 448.0).clamp(min=1.0 / (448.0 * 512.0))
    codes = (x / input_scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return (codes.float() @ weight.weight.float().T) * input_scale * weight.row_scale
