"""Activations to E4M3 in one launch (quantize.cu), where no norm before has done it."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels import library


def quantize(x: Tensor, given: Tensor | None, *, dependent: bool = False) -> tuple[Tensor, Tensor]:
    """x bf16 [m, k] -> (codes e4m3 [m, k], the scale of each row fp32 [m]), one launch.

    given fp32 []: the scale of all rows; None: of each max|x| / 448. The bits of quantize.py on a CPU, the sign of a
    zero apart; on CUDA torch multiplies by 1/448, which may be a last bit off. ValueError for other dtypes,
    and for a k that is no multiple of 8.
    """
    m, k = x.shape
    if x.dtype != torch.bfloat16 or not x.is_contiguous() or k % 8:
        raise ValueError(
            f"quantize: found x {x.dtype} {list(x.shape)}; expected contiguous bfloat16, columns in eights"
        )
    codes, scales = x.new_empty(m, k, dtype=torch.float8_e4m3fn), x.new_empty(m, dtype=torch.float32)
    library.call("engine_quantize", x.device, x, given, codes, scales, m, k, int(dependent))
    return codes, scales
