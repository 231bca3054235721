"""Experts in FP8: E4M3 codes in the units of ops/w8a8, a scale per row, and the launch that makes codes of their input.

Nothing is widened: codes are multiplied by codes, the sums by the scales of token and row, in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels import library
from engine.ops.w8a8 import pack as w8a8_pack
from engine.weights.types import Fp8Weight


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Experts:
    """One projection of all experts, the shared one last: FP8 matrices [n, k] in units."""

    units: Tensor
    """uint8 [experts · n/16, k/128, 2048]."""
    row_scale: Tensor
    """fp32 [experts · n]."""
    rows: int
    """n."""
    input_scale: Tensor | None
    """fp32 []: of every input, the largest of all experts', as in vLLM. None: one per row, found at run time."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.units.shape[1] * w8a8_pack.UNIT_K


def pack(weight: Fp8Weight, rows: int) -> Fp8Experts:
    """`weight` has one expert's rows after another's, `rows` each."""
    return Fp8Experts(w8a8_pack.pack(weight.weight), weight.row_scale, rows, weight.input_scale)


def quantize(x: Tensor, given: Tensor | None, *, dependent: bool = False) -> tuple[Tensor, Tensor]:
    """x bf16 [m, k] -> (codes e4m3 [m, k], the scale of each row fp32 [m]), one launch.

    given fp32 []: the scale of all rows; None: of each max|x| / 448. The bits of ops/linear/quantize.py on a CPU, the
    sign of a zero apart; on CUDA torch multiplies by 1/448, which may be a last bit off. ValueError for other dtypes,
    and for a k that is no multiple of 8.
    """
    m, k = x.shape
    if x.dtype != torch.bfloat16 or not x.is_contiguous() or k % 8:
        raise ValueError(f"moe: found x {x.dtype} {list(x.shape)}; expected contiguous bfloat16, columns in eights")
    codes, scales = x.new_empty(m, k, dtype=torch.float8_e4m3fn), x.new_empty(m, dtype=torch.float32)
    library.call("engine_moe_quantize", x.device, x, given, codes, scales, m, k, int(dependent))
    return codes, scales
