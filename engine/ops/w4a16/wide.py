"""W4A16 for many tokens on Hopper: wide.cu multiplies from the units themselves, and writes no weight out.

Roundings: codes times block scales are exact, sums and row scales are fp32; a library's product (ops/linear) rounds
each weight to bfloat16 with its row scale first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels import library
from engine.kernels.skinny import TILE_ROWS, Epilogue, machine
from engine.ops.w4a16.pack import UNIT_BYTES, UNIT_K

WIDE = True
"""Whether it is taken, where it can. It passed its tests on an H200 (README)."""
WIDE_ARCHS, WIDE_ROWS = ("90a",), 256
"""Where it has its products, and what n must be a multiple of."""
FROM_TOKENS, TO_TOKENS = 17, 256
"""From the one to the other. Fewer are streamed; for more a library is faster, unpacking included (README)."""
MOST_PARTS = 8
CYCLES_PER_US, BYTES_PER_US = 1700, 4.4e6
UNIT_CYCLES = 100
"""Of a unit, 16 rows by 256 columns, to unpack and feed: a multiprocessor's four schedulers. Reckoned from its SASS; an
H200 takes about three times as many (README)."""


def takes(tokens: int, n: int, device: torch.device) -> bool:
    """Whether the product of so many tokens with an [n, k] weight is made here."""
    fits = FROM_TOKENS <= tokens <= TO_TOKENS and n % WIDE_ROWS == 0
    return WIDE and fits and library.arch_of(device) in WIDE_ARCHS


def square(m: int) -> tuple[int, int]:
    """(rows, tokens) of a task, as wide.cu cuts them."""
    return (128, 32) if m <= 32 else (128, 64) if m <= 64 else (256, 128)


def parts_for(m: int, n: int, k: int, blocks: int) -> int:
    """Into how many parts of k to cut a product whose planes somebody adds up anyway: as few as fill the blocks."""
    rows, tokens = square(m)
    squares, units = n // rows * -(-m // tokens), k // UNIT_K
    column_us = rows // TILE_ROWS * max(UNIT_CYCLES, 2 * tokens) / CYCLES_PER_US

    def cost_us(parts: int) -> float:
        rounds = -(-squares * parts // blocks)
        written_and_read = 2 * 4 * parts * m * n
        return rounds * -(-units // parts) * column_us + written_and_read / BYTES_PER_US

    return min(range(1, min(units, MOST_PARTS) + 1), key=cost_us)


def product(x: Tensor, units: Tensor, row_scale: Tensor) -> Tensor:
    """bf16 [m, k] -> bf16 [m, n]; units uint8 [n/16, k/256, 2304], row_scale fp32 [n]."""
    out = x.new_empty(x.shape[0], units.shape[0] * TILE_ROWS)
    _run(x, units, row_scale, out, 1, Epilogue.BF16)
    return out


def swiglu(x: Tensor, units: Tensor, row_scale: Tensor) -> Tensor:
    """bf16 [m, k] -> silu(gate) · up, bf16 [m, n/2]; rows interleaved by `pack.interleave` before packing."""
    out = x.new_empty(x.shape[0], units.shape[0] * TILE_ROWS // 2)
    _run(x, units, row_scale, out, 1, Epilogue.SWIGLU)
    return out


def partial(x: Tensor, units: Tensor, row_scale: Tensor, parts: int | None = None) -> Tensor:
    """bf16 [m, k] -> fp32 [parts, m, n]: their sum over parts is the product. None: as many as are best."""
    (m, k), n = x.shape, units.shape[0] * TILE_ROWS
    parts = parts_for(m, n, k, machine(x.device).multiprocessors) if parts is None else parts
    out = x.new_empty(parts, m, n, dtype=torch.float32)
    _run(x, units, row_scale, out, parts, Epilogue.PARTIAL)
    return out


def _run(x: Tensor, units: Tensor, row_scale: Tensor, out: Tensor, parts: int, epilogue: Epilogue) -> None:
    (m, k), n = x.shape, units.shape[0] * TILE_ROWS
    if x.dtype != torch.bfloat16 or not x.is_contiguous() or units.shape[1:] != (k // UNIT_K, UNIT_BYTES):
        raise ValueError(
            f"w4a16: found x {x.dtype} {list(x.shape)}, units {list(units.shape)}; expected contiguous bfloat16 and "
            f"[n/16, {k // UNIT_K}, {UNIT_BYTES}]"
        )
    sizes = (m, n, k, parts, int(epilogue), machine(x.device).multiprocessors, 1)
    library.call("engine_w4a16_wide", x.device, units, row_scale, x, out, *sizes)
