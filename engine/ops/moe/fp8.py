"""Experts in FP8: E4M3 codes in the units of ops/w8a8, and a scale per row.

Nothing is widened: codes are multiplied by codes, the sums by the scales of token and row, in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

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
