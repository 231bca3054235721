"""Products of packed weights on a CPU: what the stand-ins for kernels compute with."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.ops.w4a16 import pack as w4a16_pack
from engine.ops.w8a8 import pack as w8a8_pack
from engine.weights.types import E2M1_VALUES


def four_bit(units: Tensor, row_scale: Tensor) -> Tensor:
    codes, scales = w4a16_pack.unpack(units)
    return torch.tensor(E2M1_VALUES)[codes] * scales.repeat_interleave(16, 1) * row_scale[:, None]


def eight_bit(units: Tensor, row_scale: Tensor) -> Tensor:
    return w8a8_pack.unpack(units).float() * row_scale[:, None]


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x · weightᵀ in fp32."""
    return x.float() @ weight.float().T


def partial(x: Tensor, weight: Tensor, parts: int) -> Tensor:
    """fp32 [parts, m, n]."""
    cut = -(-x.shape[1] // parts)
    return torch.stack([product(a, b) for a, b in zip(x.split(cut, 1), weight.split(cut, 1), strict=True)])


def swiglu(y: Tensor) -> Tensor:
    gate, up = y.view(y.shape[0], -1, 2, 8).unbind(2)
    return (F.silu(gate) * up).flatten(1)
