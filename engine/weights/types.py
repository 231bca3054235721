"""Weights as they stay resident: packed, in the dtype they were shipped in, with one fp32 scale per output row.

One scale per row (rather than per tensor) is what makes fusing exact: `fuse` concatenates rows and every row keeps the
scale its own shard came with. vLLM instead requantises fused shards to their largest scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NVFP4_BLOCK = 16
"""Elements along K that share one E4M3 block scale."""

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Value of each 4-bit code: bit 3 is the sign, bits 2..0 the magnitude (OCP Microscaling Formats, E2M1)."""


class WeightError(ValueError):
    """A weight cannot be built as asked; the message names what was found and what was expected."""


def _check(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise WeightError(f"{name}: found {tensor.dtype} {list(tensor.shape)}, expected {dtype} {list(shape)}")


def unpack_e2m1(packed: Tensor) -> Tensor:
    """u8 [..., K/2] -> codes u8 [..., K]. The low nibble is the even element, the high nibble the odd one."""
    return torch.stack((packed & 0x0F, packed >> 4), dim=-1).flatten(-2)


def pack_e2m1(codes: Tensor) -> Tensor:
    """Codes u8 [..., K], each below 16, K even -> u8 [..., K/2]; the inverse of `unpack_e2m1`."""
    if codes.shape[-1] % 2:
        raise WeightError(f"packing needs an even number of columns, found {codes.shape[-1]}")
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


@dataclass(frozen=True, slots=True, eq=False)
class Nvfp4Weight:
    """W4A16: w[n, k] = E2M1(packed[n, k]) × block_scale[n, k // 16] × row_scale[n]. Activations stay 16 bit.

    The product of the first two is exact in bf16 (2 + 4 significant bits), so only row_scale rounds.
    """

    packed: Tensor
    """u8 [N, K/2], low nibble first, row-major as on disk."""
    block_scale: Tensor
    """float8_e4m3fn [N, K/16], never negative, row-major as on disk."""
    row_scale: Tensor
    """f32 [N]: the checkpoint's global scale as a multiplier (compressed-tensors stores its reciprocal)."""

    def __post_init__(self) -> None:
        n, half_k = self.packed.shape
        if half_k * 2 % NVFP4_BLOCK:
            raise WeightError(f"NVFP4 needs K to be a multiple of {NVFP4_BLOCK}, found {half_k * 2}")
        _check("packed", self.packed, torch.uint8, (n, half_k))
        _check("block_scale", self.block_scale, torch.float8_e4m3fn, (n, half_k * 2 // NVFP4_BLOCK))
        _check("row_scale", self.row_scale, torch.float32, (n,))

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K) of the matrix it stands for."""
        return self.packed.shape[0], self.packed.shape[1] * 2

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.block_scale.nbytes + self.row_scale.nbytes

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """[N, K] in `dtype`: computed in fp32, rounded to `dtype` once at the end. The specification for kernels."""
        values = torch.tensor(E2M1_VALUES, dtype=torch.float32, device=self.packed.device)
        codes = unpack_e2m1(self.packed).to(torch.int32)
        n, k = self.shape
        blocks = values[codes].reshape(n, k // NVFP4_BLOCK, NVFP4_BLOCK) * self.block_scale.float().unsqueeze(-1)
        return (blocks.reshape(n, k) * self.row_scale.unsqueeze(-1)).to(dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Weight:
    """W8A8: w[n, k] = weight[n, k] × row_scale[n]; its input is quantised to E4M3 with input_scale first."""

    weight: Tensor
    """float8_e4m3fn [N, K]."""
    row_scale: Tensor
    """f32 [N], a multiplier."""
    input_scale: Tensor | None
    """f32 []: x is quantised as clamp(x / input_scale, ±448). None: dynamic, one scale per token at run time."""

    def __post_init__(self) -> None:
        n, k = self.weight.shape
        _check("weight", self.weight, torch.float8_e4m3fn, (n, k))
        _check("row_scale", self.row_scale, torch.float32, (n,))
        if self.input_scale is not None:
            _check("input_scale", self.input_scale, torch.float32, ())

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def nbytes(self) -> int:
        inputs = 0 if self.input_scale is None else self.input_scale.nbytes
        return self.weight.nbytes + self.row_scale.nbytes + inputs

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """[N, K] in `dtype`: computed in fp32, rounded once. Says nothing of the quantised activation."""
        return (self.weight.float() * self.row_scale.unsqueeze(-1)).to(dtype)


@dataclass(frozen=True, slots=True, eq=False)
class DenseWeight:
    """An unquantised matrix, in the dtype it was shipped in."""

    weight: Tensor
    """bf16, f16 or f32 [N, K]."""

    def __post_init__(self) -> None:
        if self.weight.dtype not in (torch.bfloat16, torch.float16, torch.float32) or self.weight.dim() != 2:
            raise WeightError(
                f"weight: found {self.weight.dtype} {list(self.weight.shape)}, expected bf16, f16 or f32 [N, K]"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """[N, K] in `dtype`; no copy where the dtype already matches."""
        return self.weight.to(dtype)


Weight = Nvfp4Weight | Fp8Weight | DenseWeight


def fused_input_scale(shards: Sequence[Fp8Weight]) -> Tensor | None:
    """One scale for the shared input: the largest, which saturates no more than any shard's own. So does vLLM."""
    scales = [s.input_scale for s in shards if s.input_scale is not None]
    if not scales:
        return None
    if len(scales) != len(shards):
        raise WeightError("cannot fuse: some shards have a static input_scale and some are dynamic")
    return torch.stack(scales).amax()


def fuse(shards: Sequence[Weight]) -> Weight:
    """Concatenate shards of one scheme along the output rows, exactly: row n of the result is row n of its shard.

    Raises WeightError where schemes, dtypes or K differ: they must then stay separate launches.
    """
    if not shards:
        raise WeightError("cannot fuse: no shards given")
    if len(shards) == 1:
        return shards[0]
    kinds = {type(s).__name__ for s in shards}
    widths = {s.shape[1] for s in shards}
    if len(kinds) > 1 or len(widths) > 1:
        raise WeightError(f"cannot fuse: shards are {sorted(kinds)} with K {sorted(widths)}, expected one of each")
    nvfp4 = [s for s in shards if isinstance(s, Nvfp4Weight)]
    if nvfp4:
        return Nvfp4Weight(
            packed=torch.cat([s.packed for s in nvfp4]),
            block_scale=_cat_fp8([s.block_scale for s in nvfp4]),
            row_scale=torch.cat([s.row_scale for s in nvfp4]),
        )
    fp8 = [s for s in shards if isinstance(s, Fp8Weight)]
    if fp8:
        return Fp8Weight(
            weight=_cat_fp8([s.weight for s in fp8]),
            row_scale=torch.cat([s.row_scale for s in fp8]),
            input_scale=fused_input_scale(fp8),
        )
    dense = [s.weight for s in shards if isinstance(s, DenseWeight)]
    if len({d.dtype for d in dense}) > 1:
        raise WeightError(f"cannot fuse: dense shards are {sorted(str(d.dtype) for d in dense)}, expected one dtype")
    return DenseWeight(torch.cat(dense))


def _cat_fp8(parts: list[Tensor]) -> Tensor:
    # torch.cat has no float8 kernel on every device; bytes concatenate the same.
    return torch.cat([p.view(torch.uint8) for p in parts]).view(torch.float8_e4m3fn)
