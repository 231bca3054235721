"""Rotary position embedding on the first part of each head, half-split (NeoX) pairing.

Contract: `table(max_positions, rotary_dim, theta, dtype)` -> [max_positions, rotary_dim] = cos | sin, each of
rotary_dim/2 columns. `apply(x, cos_sin)` with x [tokens, heads, head_dim] and cos_sin [tokens, rotary_dim] (rows of
the table) returns a new tensor: the first rotary_dim entries of each head rotated, the rest unchanged.

For text the three position streams of M-RoPE are equal, so this one-dimensional form is exact. The table is rounded
to the activation dtype, as vLLM and transformers both do; the rotation itself is fp32 with one rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

DEVICES = frozenset({"cpu", "cuda"})


def table(max_positions: int, rotary_dim: int, theta: float, dtype: torch.dtype) -> Tensor:
    """cos | sin of position · theta^(-2i / rotary_dim), [max_positions, rotary_dim] in `dtype`."""
    frequency = 1.0 / theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)
    angle = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequency
    return torch.cat((angle.cos(), angle.sin()), -1).to(dtype)


def apply(x: Tensor, cos_sin: Tensor) -> Tensor:
    """[tokens, heads, head_dim] -> the same shape and dtype."""
    half = cos_sin.shape[-1] // 2
    cos, sin = cos_sin.float()[:, None].chunk(2, -1)
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)
    return torch.cat((rotated, x[..., 2 * half :]), -1)
