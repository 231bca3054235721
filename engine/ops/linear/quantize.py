"""Activations to E4M3, as W8A8 checkpoints mean it."""

from __future__ import annotations

import torch
from torch import Tensor

E4M3_MAX = 448.0

MIN_TOKEN_SCALE = 1.0 / (E4M3_MAX * 512.0)
"""Smallest scale of a token, so that a row of zeros stays finite; vLLM's dynamic per-token quantisation uses the
same.
"""


def quantize_per_tensor(x: Tensor, scale: Tensor) -> Tensor:
    """round_e4m3(clamp(x / scale, ±448)) as fp32 values; x [tokens, K], scale fp32 []."""
    return (x.float() * scale.reciprocal()).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float()


def quantize_per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    """The same with scale = max|x| / 448 of each token: (values fp32 [tokens, K], scale fp32 [tokens, 1])."""
    x = x.float()
    scale = (x.abs().amax(-1, keepdim=True) / E4M3_MAX).clamp(min=MIN_TOKEN_SCALE)
    return (x / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float(), scale
