"""FP8 checkpoint tensors -> the units kernel.cu streams. Plain torch; runs where the tensors are."""

from __future__ import annotations

import torch
from torch import Tensor

UNIT_ROWS, UNIT_K = 16, 128


def pack(weight: Tensor) -> Tensor:
    """weight e4m3 [n, k] -> uint8 [n/16, k/128, 2048]; n a multiple of 16 and k of 128, else ValueError."""
    n, k = weight.shape
    if n % UNIT_ROWS or k % UNIT_K:
        raise ValueError(f"w8a8: shape {n}x{k}; n must be a multiple of {UNIT_ROWS} and k of {UNIT_K}")
    # [tile, half, g, unit, part, t, 16] -> [tile, unit, part, half, g, t, 16]
    lanes = weight.view(torch.uint8).view(n // UNIT_ROWS, 2, 8, k // UNIT_K, 2, 4, 16).permute(0, 3, 4, 1, 2, 5, 6)
    return lanes.reshape(n // UNIT_ROWS, k // UNIT_K, UNIT_ROWS * UNIT_K)


def unpack(units: Tensor) -> Tensor:
    """The inverse: uint8 [n/16, k/128, 2048] -> e4m3 [n, k]."""
    tiles, columns = units.shape[:2]
    lanes = units.view(tiles, columns, 2, 2, 8, 4, 16).permute(0, 3, 4, 1, 2, 5, 6)
    return lanes.reshape(tiles * UNIT_ROWS, columns * UNIT_K).view(torch.float8_e4m3fn)
