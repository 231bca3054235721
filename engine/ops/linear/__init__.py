"""y = x Wᵀ for a weight in its shipped form: dense, W4A16 NVFP4 or W8A8 FP8.

Contract: `linear(x, operand)` with x [tokens, K] in the activation dtype (bfloat16 or float32) -> [tokens, N] in
the same dtype. Accumulation is fp32, and the result is rounded once.

* dense: the product.
* W4A16: x is not quantised; codes and block scales multiply exactly in bfloat16, the row scale in fp32.
* W8A8: x is quantised to E4M3 with the static input_scale, or with one scale per token where the checkpoint has none;
  the product of the E4M3 values is scaled by both in fp32. An operand prepared without `quantize_inputs` multiplies x
  by the dequantised weight instead.

An `Operand` is a weight made ready once, at load. Without a kernel the matrix must be dequantised to be multiplied;
`Budget` says how many bytes of such copies may stay, and beyond it they are remade per call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.ops.linear.quantize import quantize_per_tensor, quantize_per_token
from engine.weights.types import DenseWeight, Fp8Weight, Nvfp4Weight, Weight

DEVICES = frozenset({"cpu", "cuda"})


@dataclass(slots=True)
class Budget:
    """Bytes still free for dequantised copies."""

    free_bytes: int

    def take(self, nbytes: int) -> bool:
        """Reserve nbytes if they fit."""
        if nbytes > self.free_bytes:
            return False
        self.free_bytes -= nbytes
        return True


@dataclass(frozen=True, slots=True)
class Operand:
    """A weight and, within the budget, the matrix that the torch path multiplies by."""

    weight: Weight
    matrix: Tensor | None
    """[N, K] in `compute_dtype`; None: dequantised per call. For a dense weight of that dtype it is the weight
    itself.
    """
    compute_dtype: torch.dtype
    quantizes_input: bool = False
    """W8A8: x goes through E4M3 before the product."""

    @property
    def copy_bytes(self) -> int:
        """Bytes held beside the shipped weight."""
        if self.matrix is None or (isinstance(self.weight, DenseWeight) and self.matrix is self.weight.weight):
            return 0
        return self.matrix.nbytes


@cache
def fast_bfloat16(device_type: str) -> bool:
    """Whether a bfloat16 product is faster than a float32 one: on a CPU only with the AVX-512 BF16 instructions."""
    return device_type != "cpu" or torch.cpu._is_avx512_bf16_supported()


def prepare(weight: Weight, dtype: torch.dtype, budget: Budget, *, quantize_inputs: bool = True) -> Operand:
    """Make `weight` ready to multiply activations of `dtype`. `quantize_inputs` matters to W8A8 weights alone."""
    quantizes = quantize_inputs and isinstance(weight, Fp8Weight)
    device = weight.packed.device if isinstance(weight, Nvfp4Weight) else weight.weight.device
    # A bfloat16 product of E4M3 values, which bfloat16 holds exactly, would be rounded before the scales are applied.
    wide = quantizes or (dtype == torch.bfloat16 and not fast_bfloat16(device.type))
    compute = torch.float32 if wide else dtype
    if isinstance(weight, DenseWeight) and weight.weight.dtype == compute:
        return Operand(weight, weight.weight, compute)
    rows, columns = weight.shape
    fits = budget.take(rows * columns * compute.itemsize)
    matrix = _matrix(weight, dtype, compute, quantizes) if fits else None
    return Operand(weight, matrix, compute, quantizes)


def linear(x: Tensor, operand: Operand) -> Tensor:
    """[tokens, K] -> [tokens, N] in x's dtype."""
    weight = operand.weight
    matrix = operand.matrix
    if matrix is None:
        matrix = _matrix(weight, x.dtype, operand.compute_dtype, operand.quantizes_input)
    if operand.quantizes_input and isinstance(weight, Fp8Weight):
        if weight.input_scale is not None:
            return F.linear(quantize_per_tensor(x, weight.input_scale), matrix).to(x.dtype)
        quantized, scale = quantize_per_token(x)
        return (F.linear(quantized, matrix) * scale).to(x.dtype)
    if matrix.dtype == x.dtype:
        return F.linear(x, matrix)
    return F.linear(x.to(matrix.dtype), matrix).to(x.dtype)


def _matrix(weight: Weight, dtype: torch.dtype, compute: torch.dtype, quantizes: bool) -> Tensor:
    """The weight as the torch path multiplies it; where the input is quantised, every static scale is folded in."""
    if quantizes and isinstance(weight, Fp8Weight):
        matrix = weight.dequantize(torch.float32)
        return matrix if weight.input_scale is None else matrix * weight.input_scale
    # Rounded to the activation dtype even where the product is fp32, so that both CPUs use the same numbers.
    return weight.dequantize(dtype).to(compute)
