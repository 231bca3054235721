"""RMSNorm, written out in fp32."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """[..., n] -> fp32 [..., n]; scale fp32 [n]."""
    x = x.float()
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * scale.float()


def add_rms_norm(x: Tensor, residual: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual is rounded to x's dtype before it is normalised."""
    total = (x.float() + residual.float()).to(x.dtype)
    return rms_norm(total, scale, eps), total


def gated_rms_norm(x: Tensor, gate: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Norm first, gate after."""
    gate = gate.float()
    return rms_norm(x, scale, eps) * gate / (1 + torch.exp(-gate))
