"""Rotary embedding, one complex multiplication per pair."""

from __future__ import annotations

import torch
from torch import Tensor


def apply(x: Tensor, cos_sin: Tensor) -> Tensor:
    """[tokens, heads, head_dim], [tokens, rotary_dim] -> fp32 [tokens, heads, head_dim]."""
    half = cos_sin.shape[-1] // 2
    out = x.float().clone()
    turn = torch.complex(cos_sin[:, :half].float(), cos_sin[:, half:].float())[:, None]
    pairs = torch.complex(out[..., :half].contiguous(), out[..., half : 2 * half].contiguous()) * turn
    out[..., :half], out[..., half : 2 * half] = pairs.real, pairs.imag
    return out
