"""NVFP4 checkpoint tensors -> the units kernel.cu streams, and back. Plain torch; runs where the tensors are."""

from __future__ import annotations

import torch
from torch import Tensor

UNIT_ROWS, UNIT_K, UNIT_BYTES = 16, 256, 2304
_CODES_PER_PASS = 8 * 2**20
"""Codes repacked at a time, whatever the row length: each int16 temporary is at most 16 MB, which an H200's L2 holds,
and a pass is some forty launches."""


def _scale_bytes(block_scale: Tensor) -> Tensor:
    """e4m3 (never negative) as 5 exponent and 3 mantissa bits, subnormals normalised: value = 2^(e−10) · (1 + m/8)."""
    bits = block_scale.view(torch.uint8).to(torch.int32)
    exponent, mantissa = bits >> 3, bits & 7
    normal = (exponent + 3) << 3 | mantissa
    subnormal = torch.tensor(
        [0, 1 << 3, 2 << 3, 2 << 3 | 4, 3 << 3, 3 << 3 | 2, 3 << 3 | 4, 3 << 3 | 6], device=bits.device
    )
    return torch.where(exponent > 0, normal, subnormal[mantissa.long()]).to(torch.uint8)


def pack(packed: Tensor, block_scale: Tensor) -> Tensor:
    """packed uint8 [n, k/2] (low nibble = even column), block_scale e4m3 [n, k/16] -> uint8 [n/16, k/256, 2304].

    n must be a multiple of 16 and k of 256. Raises ValueError otherwise.
    """
    n, k = packed.shape[0], packed.shape[1] * 2
    if n % UNIT_ROWS or k % UNIT_K:
        raise ValueError(f"w4a16: shape {n}x{k}; n must be a multiple of {UNIT_ROWS} and k of {UNIT_K}")
    out = torch.empty(n // UNIT_ROWS, k // UNIT_K, UNIT_BYTES, dtype=torch.uint8, device=packed.device)
    most = max(_CODES_PER_PASS // k // UNIT_ROWS, 1) * UNIT_ROWS
    for start in range(0, n, most):
        rows = slice(start, min(start + most, n))
        _pack_rows(
            packed[rows], block_scale[rows], out[rows.start // UNIT_ROWS : (rows.stop + UNIT_ROWS - 1) // UNIT_ROWS]
        )
    return out


def _pack_rows(packed: Tensor, block_scale: Tensor, out: Tensor) -> None:
    tiles, units = out.shape[:2]
    nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).to(torch.int16).view(tiles * UNIT_ROWS, units * UNIT_K)
    zero = (block_scale.view(torch.uint8) == 0).repeat_interleave(16, dim=1)
    nibbles.masked_fill_(zero, 0)  # a zero scale has no byte of its own: its codes are zeroed instead
    # [tile, half, g, unit, part, t, step, pair, odd] -> [tile, unit, part, g, t, step, odd, pair, half]
    codes = nibbles.view(tiles, 2, 8, units, 4, 4, 4, 2, 2).permute(0, 3, 4, 2, 5, 6, 8, 7, 1)
    sign, magnitude = codes >> 3, codes & 7
    words = (
        (sign[..., 0, 0] << 15 | magnitude[..., 0, 0] << 6)
        | (sign[..., 0, 1] << 12 | magnitude[..., 0, 1] << 3)
        | (sign[..., 1, 0] << 14 | magnitude[..., 1, 0])
        | (sign[..., 1, 1] << 13 | magnitude[..., 1, 1] << 9)
    )
    out[..., :2048] = words.contiguous().view(torch.uint8).view(tiles, units, 2048)
    scales = _scale_bytes(block_scale).view(tiles, 2, 8, units, 4, 4).permute(0, 3, 2, 5, 4, 1)
    out[..., 2048:] = scales.reshape(tiles, units, 256)


def unpack(units: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse: codes as int32 [n, k] and block scales as float32 [n, k/16].

    Codes under a zero scale come back as 0, whatever they were: their value was zero.
    """
    tiles, columns = units.shape[:2]
    words = (
        units[..., :2048].contiguous().view(torch.int16).view(tiles, columns, 4, 8, 4, 4, 2).to(torch.int32) & 0xFFFF
    )
    codes = torch.empty(*words.shape, 2, 2, dtype=torch.int32, device=units.device)
    for pair, half, sign, magnitude in ((0, 0, 15, 6), (0, 1, 12, 3), (1, 0, 14, 0), (1, 1, 13, 9)):
        codes[..., pair, half] = (words >> sign & 1) << 3 | (words >> magnitude & 7)
    # [tile, unit, part, g, t, step, odd, pair, half] -> [tile, half, g, unit, part, t, step, pair, odd]
    codes = codes.permute(0, 8, 3, 1, 2, 4, 5, 7, 6).reshape(tiles * UNIT_ROWS, columns * UNIT_K)
    bytes_ = units[..., 2048:].reshape(tiles, columns, 8, 4, 4, 2).permute(0, 5, 2, 1, 4, 3).to(torch.int32)
    bytes_ = bytes_.reshape(tiles * UNIT_ROWS, columns * UNIT_K // 16)
    scales = torch.ldexp(1 + (bytes_ & 7).float() / 8, (bytes_ >> 3) - 10)
    return codes, scales.masked_fill(bytes_ == 0, 0.0)


def interleave(gate: Tensor, up: Tensor) -> Tensor:
    """[n, ...] each -> [2n, ...] with 8 rows of gate, then 8 of up, and so on: what the SwiGLU epilogue expects.

    For codes, block scales and row scales alike. n must be a multiple of 8, else ValueError.
    """
    if gate.shape != up.shape or gate.shape[0] % 8:
        raise ValueError(f"w4a16: gate {list(gate.shape)}, up {list(up.shape)}; expected equal, rows a multiple of 8")
    eights = (gate.shape[0] // 8, 8, *gate.shape[1:])
    pairs = torch.stack((_bytes(gate).view(eights), _bytes(up).view(eights)), dim=1)
    return pairs.flatten(0, 2).view(gate.dtype)


def _bytes(tensor: Tensor) -> Tensor:
    # Not every operator has a float8 form; bytes move the same.
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor
