"""Products of packed weights on CUDA: streamed for few tokens, from the same units for some hundred, a library beyond.

A weight is resident once, as the units of engine/ops/{w4a16,w8a8}. For more tokens than the streaming kernels take, it
is written out row by row into scratch that all layers share (NVFP4 as bfloat16 with every scale applied, rounded once,
as `Nvfp4Weight.dequantize` specifies; FP8 as the same bytes) and multiplied by a library. Rejected: a second resident
copy (15 GB more for the 27B).

A bfloat16 weight lies as it was shipped and is a library's product for any number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import ClassVar

import torch
from torch import Tensor

from engine.kernels import library
from engine.kernels.skinny import MAX_TOKENS, TILE_ROWS
from engine.ops.linear.cuda_quantize import quantize
from engine.ops.sample import cuda as sample_cuda
from engine.ops.w4a16 import pack as w4a16_pack
from engine.ops.w4a16 import wide
from engine.ops.w4a16.cuda import w4a16, w4a16_argmax, w4a16_partial, w4a16_swiglu
from engine.ops.w8a8 import pack as w8a8_pack
from engine.ops.w8a8.cuda import w8a8, w8a8_partial
from engine.weights.types import DenseWeight, Fp8Weight, Nvfp4Weight, Weight, WeightError, fuse, fused_input_scale


@dataclass(frozen=True, slots=True, eq=False)
class W4A16:
    """An NVFP4 matrix [n, k] in units; bfloat16 activations."""

    units: Tensor
    """uint8 [n/16, k/256, 2304]."""
    row_scale: Tensor
    """fp32 [n]."""
    input_scale: ClassVar[None] = None
    reads_rows: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.units.shape[0] * TILE_ROWS, self.units.shape[1] * w4a16_pack.UNIT_K

    @property
    def scratch_bytes(self) -> int:
        """What it needs to be written out in row order."""
        n, k = self.shape
        return 2 * n * k


@dataclass(frozen=True, slots=True, eq=False)
class W8A8:
    """An FP8 matrix [n, k] in units, for inputs in E4M3."""

    units: Tensor
    """uint8 [n/16, k/128, 2048]."""
    row_scale: Tensor
    """fp32 [n]: the weight's, times a static input_scale, since nothing stands between the two in a product."""
    input_scale: Tensor | None
    """fp32 []: of every input. None: one scale per token, found at run time."""

    @property
    def reads_rows(self) -> bool:
        """Whether its input is bfloat16 rows, and not their E4M3 codes."""
        return self.input_scale is None

    @property
    def shape(self) -> tuple[int, int]:
        return self.units.shape[0] * TILE_ROWS, self.units.shape[1] * w8a8_pack.UNIT_K

    @property
    def scratch_bytes(self) -> int:
        n, k = self.shape
        return n * k


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A bfloat16 matrix [n, k] as it was shipped."""

    rows: Tensor
    """bf16 [n, k]."""
    input_scale: ClassVar[None] = None
    reads_rows: ClassVar[bool] = True
    scratch_bytes: ClassVar[int] = 0

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.shape[0], self.rows.shape[1]


Packed = W4A16 | W8A8 | Dense


@dataclass(frozen=True, slots=True, eq=False)
class SideBySide:
    """Projections of one input in more than one scheme: a product each, into columns of one output."""

    parts: tuple[Packed, ...]
    reads_rows: ClassVar[bool] = True
    """Those with a static scale read codes where there are some; in one scheme alone they would be one product."""

    @property
    def input_scale(self) -> Tensor | None:
        """fp32 []: of all that have a static one."""
        return next((part.input_scale for part in self.parts if part.input_scale is not None), None)

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    @property
    def scratch_bytes(self) -> int:
        return max(part.scratch_bytes for part in self.parts)


Projection = Packed | SideBySide

SWIGLU_TOKENS = 2048
"""Tokens at a time of which gate and up are both in memory: 143 MB for the 27B, of 16,384 tokens 1.1 GB."""


def pack_w4a16(weight: Nvfp4Weight) -> W4A16:
    return W4A16(w4a16_pack.pack(weight.packed, weight.block_scale), weight.row_scale)


def pack_w8a8(weight: Fp8Weight) -> W8A8:
    scale = weight.input_scale
    row_scale = weight.row_scale if scale is None else weight.row_scale * scale
    return W8A8(w8a8_pack.pack(weight.weight), row_scale, scale)


def pack(weight: Weight) -> Packed:
    """Raises WeightError for a dense weight that is not bfloat16."""
    match weight:
        case Nvfp4Weight():
            return pack_w4a16(weight)
        case Fp8Weight():
            return pack_w8a8(weight)
    if weight.weight.dtype != torch.bfloat16:
        raise WeightError(f"found a dense weight in {weight.weight.dtype}, expected NVFP4, FP8 or bfloat16")
    return Dense(weight.weight)


def pack_together(shards: Sequence[Weight]) -> Projection:
    """Projections of one input as one product; in several schemes, one for each run of neighbours in the same.

    The input is quantised once: a static scale becomes the largest of all, as in `fuse`.
    """
    scale = fused_input_scale([s for s in shards if isinstance(s, Fp8Weight) and s.input_scale is not None])
    alike = (
        replace(s, input_scale=scale) if isinstance(s, Fp8Weight) and s.input_scale is not None else s for s in shards
    )
    parts = tuple(pack(fuse(list(run))) for _, run in groupby(alike, _kind))
    return parts[0] if len(parts) == 1 else SideBySide(parts)


def _kind(weight: Weight) -> tuple[str, bool]:
    """What weights that `fuse` joins have in common."""
    return type(weight).__name__, isinstance(weight, Fp8Weight) and weight.input_scale is not None


def pack_gate_up(gate: Weight, up: Weight) -> Projection:
    """One matrix of 2n rows, eight of gate and eight of up in turn: what `swiglu` expects. In two schemes, both."""
    if _kind(gate) != _kind(up):
        return SideBySide((pack(gate), pack(up)))
    if isinstance(gate, Nvfp4Weight) and isinstance(up, Nvfp4Weight):
        packed = w4a16_pack.interleave(gate.packed, up.packed)
        block_scale = w4a16_pack.interleave(gate.block_scale, up.block_scale)
        return W4A16(w4a16_pack.pack(packed, block_scale), w4a16_pack.interleave(gate.row_scale, up.row_scale))
    if isinstance(gate, Fp8Weight) and isinstance(up, Fp8Weight):
        scale = fused_input_scale([gate, up])
        rows = w4a16_pack.interleave(gate.weight, up.weight)
        return pack_w8a8(Fp8Weight(rows, w4a16_pack.interleave(gate.row_scale, up.row_scale), scale))
    assert isinstance(gate, DenseWeight)
    assert isinstance(up, DenseWeight)
    return pack(DenseWeight(w4a16_pack.interleave(gate.weight, up.weight)))


class Scratch:
    """Where one weight at a time lies in row order. Work on it is ordered by the stream it all runs on.

    And ones that library products read in place of a scale per token: made for each of them, it was a launch and an
    allocation, 80 of a prefill step of the 35B. None is let go when a larger step asks for more: a CUDA graph of a
    prompt reads them where they lay when it was captured.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.buffer = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self._ones = [torch.empty(0, 1, dtype=torch.float32, device=device)]

    def rows(self, weight: W4A16 | W8A8) -> Tensor:
        """[n, k] in bfloat16 or float8_e4m3fn, valid until the next call. Raises ValueError where it does not fit."""
        n, k = weight.shape
        if weight.scratch_bytes > self.buffer.numel():
            raise ValueError(
                f"scratch: found {self.buffer.numel()} bytes for {n}x{k}; expected at least {weight.scratch_bytes}"
            )
        out = self.buffer[: weight.scratch_bytes]
        if isinstance(weight, W4A16):
            out = out.view(torch.bfloat16).view(n, k)
            library.call("engine_w4a16_rows", out.device, weight.units, weight.row_scale, out, n, k)
        else:
            out = out.view(torch.float8_e4m3fn).view(n, k)
            library.call("engine_w8a8_rows", out.device, weight.units, out, n, k)
        return out

    def ones(self, tokens: int) -> Tensor:
        """fp32 [tokens, 1], to be read only: all calls share what the largest number so far asked for.

        Twice as many at least as before, so that what is kept is few and no more than as many again.
        """
        largest = self._ones[-1]
        if tokens > largest.shape[0]:
            most = max(tokens, 2 * largest.shape[0])
            self._ones.append(torch.ones(most, 1, dtype=torch.float32, device=largest.device))
        return self._ones[-1][:tokens]


def project(x: Tensor, weight: Projection, scratch: Scratch, codes: Tensor | None = None) -> Tensor:
    """x bf16 [m, k], or e4m3 for a W8A8 weight with a static scale -> bf16 [m, n].

    codes e4m3 [m, k]: x quantised with the input scale of a SideBySide, for those of its parts that have one.
    """
    out: Tensor
    if isinstance(weight, SideBySide):
        return _side_by_side(x, codes, weight, scratch)
    if isinstance(weight, Dense):
        return torch.mm(x, weight.rows.t())
    if _wide(x, weight):
        return wide.product(x, weight.units, weight.row_scale)
    if x.shape[0] > MAX_TOKENS:
        return _library_product(x, weight, scratch.rows(weight), scratch)
    if isinstance(weight, W4A16):
        out = w4a16(x, weight.units, weight.row_scale, dependent=True)
        return out
    x, token_scale = _e4m3(x, weight)
    if token_scale is not None:
        # The kernel knows one scale per row; the token's comes before the one rounding all the same.
        out = w8a8_partial(x, weight.units, weight.row_scale, dependent=True).sum(0)
        return (out * token_scale).bfloat16()
    out = w8a8(x, weight.units, weight.row_scale, dependent=True)
    return out


def _side_by_side(x: Tensor, codes: Tensor | None, weight: SideBySide, scratch: Scratch) -> Tensor:
    out = torch.empty(x.shape[0], weight.shape[0], dtype=torch.bfloat16, device=x.device)
    for part, columns in zip(weight.parts, torch.split(out, [part.shape[0] for part in weight.parts], 1), strict=True):
        if isinstance(part, Dense):
            torch.mm(x, part.rows.t(), out=columns)
        else:  # the kernels write whole rows
            columns.copy_(project(x if codes is None or part.reads_rows else codes, part, scratch))
    return out


def _library_product(x: Tensor, weight: W4A16 | W8A8, matrix: Tensor, scratch: Scratch) -> Tensor:
    """`project` with `matrix`, the weight's rows from Scratch."""
    if isinstance(weight, W4A16):
        return torch.mm(x, matrix.t())
    x, token_scale = _e4m3(x, weight)
    scale = scratch.ones(x.shape[0]) if token_scale is None else token_scale
    out: Tensor = torch._scaled_mm(
        x, matrix.t(), scale_a=scale, scale_b=weight.row_scale[None], out_dtype=torch.bfloat16
    )
    return out


def project_argmax(
    x: Tensor, weight: Packed, scratch: Scratch, ids: Tensor, space: sample_cuda.ArgmaxWorkspace
) -> Tensor:
    """`project` of at most 32 rows; `ids`, int64 [m], become the columns of their largest values, the lowest of equals.

    One launch for a W4A16 weight that is streamed, the product's and argmax's own for others.
    """
    if isinstance(weight, W4A16) and not _wide(x, weight):
        return w4a16_argmax(x, weight.units, weight.row_scale, ids, space, dependent=True)
    out = project(x, weight, scratch)
    sample_cuda.argmax(out, ids, space, dependent=True)
    return out


def planes(x: Tensor, weight: Packed, scratch: Scratch) -> Tensor:
    """The same product as [parts, m, n] whose sum over parts it is: what `norm.cuda.add_norm` reads.

    In fp32, but beyond 32 tokens of a W8A8 weight as the library rounds it: one part in bf16.
    """
    out: Tensor
    if isinstance(weight, Dense):
        return torch.mm(x, weight.rows.t(), out_dtype=torch.float32)[None]
    few = x.shape[0] <= MAX_TOKENS
    if isinstance(weight, W4A16):
        if _wide(x, weight):
            return wide.partial(x, weight.units, weight.row_scale)
        if not few:
            return torch.mm(x, scratch.rows(weight).t(), out_dtype=torch.float32)[None]
        out = w4a16_partial(x, weight.units, weight.row_scale, dependent=True)
        return out
    if not few:
        return project(x, weight, scratch)[None]
    x, token_scale = _e4m3(x, weight)
    out = w8a8_partial(x, weight.units, weight.row_scale, dependent=True)
    return out if token_scale is None else out.mul_(token_scale)


def swiglu(x: Tensor, weight: Projection, scratch: Scratch) -> Tensor:
    """silu(gate x) · up x with a weight of `pack_gate_up`: [m, k] -> bf16 [m, n/2]."""
    if isinstance(weight, W4A16) and _wide(x, weight):
        return wide.swiglu(x, weight.units, weight.row_scale)
    if isinstance(weight, W4A16) and x.shape[0] <= MAX_TOKENS:
        fused: Tensor = w4a16_swiglu(x, weight.units, weight.row_scale, dependent=True)
        return fused
    out = torch.empty(x.shape[0], weight.shape[0] // 2, dtype=torch.bfloat16, device=x.device)
    many = x.shape[0] > MAX_TOKENS
    matrix = scratch.rows(weight) if many and isinstance(weight, W4A16 | W8A8) else None
    for rows, target in zip(torch.split(x, SWIGLU_TOKENS), torch.split(out, SWIGLU_TOKENS), strict=True):
        if isinstance(weight, SideBySide):
            y = _interleaved(rows, weight, scratch)
        elif matrix is None or isinstance(weight, Dense):
            y = project(rows, weight, scratch)
        else:
            y = _library_product(rows, weight, matrix, scratch)
        library.call("engine_swiglu", y.device, y, target, *target.shape)
        del y  # before that of the next slice is allocated
    return out


def _interleaved(x: Tensor, weight: SideBySide, scratch: Scratch) -> Tensor:
    """Columns of gate and up as one product of `pack_gate_up`'s rows would leave them."""
    m, n = x.shape[0], weight.shape[0]
    y = torch.empty(m, n // 16, 2, 8, dtype=torch.bfloat16, device=x.device)
    for part, columns in zip(weight.parts, y.unbind(2), strict=True):
        columns.copy_(project(x, part, scratch).view(m, -1, 8))
    return y.view(m, n)


def _wide(x: Tensor, weight: Projection) -> bool:
    return isinstance(weight, W4A16) and wide.takes(x.shape[0], weight.shape[0], x.device)


def _e4m3(x: Tensor, weight: W8A8) -> tuple[Tensor, Tensor | None]:
    """x ready for the product, and its scale per token (fp32 [m, 1]) where the weight's is not static."""
    if x.dtype == torch.float8_e4m3fn:
        return x, None
    codes, scale = quantize(x, weight.input_scale, dependent=True)
    return codes, scale[:, None] if weight.input_scale is None else None
