"""RMSNorm in its three forms: zero-centred, zero-centred after a residual add, and plain with a SiLU gate.

Contract, for x [..., n] in bfloat16 or float32; arithmetic in fp32, one rounding at the end:

* `rms_norm(x, scale, eps)` -> x · rsqrt(mean(x²) + eps) · scale. `scale` is fp32 [n]; for a zero-centred norm it is
  1 + weight, added once at load.
* `add_rms_norm(x, residual, scale, eps)` -> (normed, residual + x). The sum is rounded to x's dtype first and the norm
  reads the rounded value, as vLLM's GemmaRMSNorm does.
* `gated_rms_norm(x, gate, scale, eps)` -> rms_norm(x) · silu(gate), fp32 throughout. transformers rounds the normalised
  value before it multiplies by the weight; vLLM does not, and neither do we.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

DEVICES = frozenset({"cpu", "cuda"})


def rms_norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """[..., n] -> [..., n] in x's dtype."""
    if x.dtype == torch.float32:
        return F.rms_norm(x, (x.shape[-1],), scale, eps)
    return F.rms_norm(x.float(), (x.shape[-1],), scale, eps).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """([..., n], [..., n]) -> (normed, new residual), both in x's dtype."""
    residual = residual + x
    return rms_norm(residual, scale, eps), residual


def gated_rms_norm(x: Tensor, gate: Tensor, scale: Tensor, eps: float) -> Tensor:
    """x and gate [..., n] -> [..., n] in gate's dtype; n is one head."""
    normed = F.rms_norm(x.float(), (x.shape[-1],), scale, eps)
    return (normed * F.silu(gate.float())).to(gate.dtype)
