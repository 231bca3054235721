"""Outputs full of NaN between guard bands, so that a kernel which skips an element or writes past the end is caught."""

from __future__ import annotations

import math

import torch
from torch import Tensor

GUARD_BYTES = 1024
POISON = 0xFF
"""As bytes: NaN in float32, bfloat16 and float8_e4m3fn."""


class Poison:
    """Allocates for the code under test; `check` proves that no guard byte changed."""

    def __init__(self) -> None:
        self.buffers: list[Tensor] = []

    def empty(self, *size: object, dtype: torch.dtype | None = None, device: object = "cpu", **_: object) -> Tensor:
        shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
        dtype = dtype or torch.float32
        nbytes = math.prod(shape) * dtype.itemsize
        buffer = torch.full((nbytes + 2 * GUARD_BYTES,), POISON, dtype=torch.uint8, device=device)
        self.buffers.append(buffer)
        return buffer[GUARD_BYTES : GUARD_BYTES + nbytes].view(dtype).view(shape)

    def check(self) -> None:
        assert self.buffers, "nothing was allocated: the test proves nothing about guards"
        for buffer in self.buffers:
            assert bool((buffer[:GUARD_BYTES] == POISON).all()), "written before the start of an output"
            assert bool((buffer[-GUARD_BYTES:] == POISON).all()), "written past the end of an output"


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """‖actual − expected‖ / ‖expected‖; NaN stays NaN."""
    actual, expected = actual.double().cpu(), expected.double().cpu()
    return float((actual - expected).norm() / expected.norm())


def product_error(actual: Tensor, x: Tensor, w: Tensor) -> float:
    """The largest error of an element of x Wᵀ, against the size its operands give it: ‖x_m‖ ‖w_n‖ / √k.

    Relative to the element itself it would be unbounded, since sums cancel; relative to the whole, one wrong row among
    thousands would not show. NaN stays NaN.
    """
    x, w = x.double(), w.double()
    size = x.norm(dim=1)[:, None] * w.norm(dim=1) / x.shape[1] ** 0.5
    return float(((actual.double() - x @ w.T).abs() / size).max())
