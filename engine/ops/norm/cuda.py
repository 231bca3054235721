"""Residual add, zero-centred RMSNorm, static E4M3 quantisation and a small bf16 product of the result: one launch.

The form that decoding needs of `add_rms_norm`: x arrives as the fp32 planes of a sliced product. `dependent` starts the
kernel while its predecessor drains.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels import library

MAX_WIDTH = 5120


@dataclass(frozen=True, slots=True)
class Normed:
    """What was asked for; None otherwise."""

    residual: Tensor | None
    """bf16 [m, n]: residual + x. None without planes: it is then the argument itself."""
    out: Tensor | None
    """bf16 [m, n]."""
    quantised: Tensor | None
    """e4m3 [m, n]."""
    small: Tensor | None
    """bf16 [m, rows]: out · small_weightᵀ, accumulated in fp32."""


def add_norm(
    planes: Tensor | None,
    residual: Tensor,
    scale: Tensor,
    eps: float,
    *,
    want_out: bool = True,
    input_scale: Tensor | None = None,
    small_weight: Tensor | None = None,
    dependent: bool = False,
) -> Normed:
    """planes fp32 [slices, m, n] or None, residual bf16 [m, n], scale fp32 [n] (1 + weight).

    input_scale fp32 []: quantise too. small_weight bf16 [rows, n]: multiply too. ValueError for other shapes or dtypes.
    """
    m, n = residual.shape
    slices = 0 if planes is None else planes.shape[0]
    if n % 8 or n > MAX_WIDTH or (planes is not None and planes.shape[1:] != (m, n)):
        found = None if planes is None else list(planes.shape)
        raise ValueError(
            f"add_norm: found residual {[m, n]}, planes {found}; expected n a multiple of 8, at most {MAX_WIDTH}"
        )
    if residual.dtype != torch.bfloat16 or scale.dtype != torch.float32 or scale.shape != (n,):
        raise ValueError(
            f"add_norm: found {residual.dtype}, scale {scale.dtype} {list(scale.shape)}; expected bf16, fp32 [{n}]"
        )
    rows = 0 if small_weight is None else small_weight.shape[0]
    result = Normed(
        residual=None if planes is None else torch.empty_like(residual),
        out=torch.empty_like(residual) if want_out else None,
        quantised=None if input_scale is None else torch.empty_like(residual, dtype=torch.float8_e4m3fn),
        small=residual.new_empty(m, rows) if rows else None,
    )
    tensors = (
        planes,
        residual,
        result.residual,
        scale,
        result.out,
        result.quantised,
        input_scale,
        small_weight,
        result.small,
    )
    library.call("engine_add_norm", residual.device, *tensors, m, n, slices, rows, eps, int(dependent))
    return result
