"""From a scheme to the tensors that store one linear layer, and from those tensors to the resident weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.weights.errors import CheckpointError
from engine.weights.quantization import Scheme
from engine.weights.types import NVFP4_BLOCK, DenseWeight, Fp8Weight, Nvfp4Weight, Weight

FLOATS = ("BF16", "F16", "F32")


@dataclass(frozen=True, slots=True)
class Spec:
    """What one tensor must be: one of `dtypes`, one of `shapes`; `required` false means it may be absent."""

    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    required: bool = True


SCALAR = ((), (1,))


def layout(scheme: Scheme, n: int, k: int) -> Mapping[str, Spec]:
    """Attribute name -> spec for a layer [n, k]. Per-tensor scales may be [] or [1], per-row ones [n] or [n, 1]."""
    packed, blocks = Spec(("U8",), ((n, k // 2),)), Spec(("F8_E4M3",), ((n, k // NVFP4_BLOCK),))
    rows = Spec(FLOATS, (*SCALAR, (n,), (n, 1)))
    match scheme:
        case Scheme.NONE:
            return {"weight": Spec(FLOATS, ((n, k),))}
        case Scheme.NVFP4:
            unused = Spec(("F32",), SCALAR, required=False)
            return {"weight": packed, "weight_scale": blocks, "weight_scale_2": rows, "input_scale": unused}
        case Scheme.NVFP4_PACKED:
            unused = Spec(("F32",), SCALAR, required=False)
            names = ("weight_packed", "weight_scale", "weight_global_scale", "input_global_scale")
            return dict(zip(names, (packed, blocks, rows, unused), strict=True))
        case Scheme.FP8_STATIC:
            weight, scale = Spec(("F8_E4M3",), ((n, k),)), Spec(FLOATS, SCALAR)
            return {"weight": weight, "weight_scale": rows, "input_scale": scale}
        case Scheme.FP8_DYNAMIC:
            return {"weight": Spec(("F8_E4M3",), ((n, k),)), "weight_scale": rows}


def build(scheme: Scheme, module: str, n: int, read: Callable[[str], Tensor]) -> Weight:
    """Read the tensors of one layer with `read(attribute)` and check their values.

    Raises CheckpointError for a NaN, infinite, zero or negative scale, and for NaN in an FP8 matrix.
    """
    match scheme:
        case Scheme.NONE:
            return DenseWeight(read("weight"))
        case Scheme.NVFP4:
            blocks = _block_scale(module, read("weight_scale"))
            return Nvfp4Weight(
                read("weight"), blocks, _row_scale(f"{module}.weight_scale_2", read("weight_scale_2"), n)
            )
        case Scheme.NVFP4_PACKED:
            blocks, name = _block_scale(module, read("weight_scale")), f"{module}.weight_global_scale"
            divisor = _row_scale(name, read("weight_global_scale"), n)
            return Nvfp4Weight(read("weight_packed"), blocks, divisor.reciprocal())
        case Scheme.FP8_STATIC | Scheme.FP8_DYNAMIC:
            weight, scale = read("weight"), _row_scale(f"{module}.weight_scale", read("weight_scale"), n)
            if bool(((weight.view(torch.uint8) & 0x7F) == 0x7F).any()):
                raise CheckpointError(f"{module}.weight: found NaN; download the checkpoint again")
            if scheme is Scheme.FP8_DYNAMIC:
                return Fp8Weight(weight, scale, None)
            input_scale = _row_scale(f"{module}.input_scale", read("input_scale"), 1)[0].clone()
            return Fp8Weight(weight, scale, input_scale)


def _row_scale(name: str, scale: Tensor, n: int) -> Tensor:
    """[] [1] [n] [n, 1] -> f32 [n], positive and finite."""
    rows = scale.float().reshape(-1)
    if not bool((torch.isfinite(rows) & (rows > 0)).all()):
        worst = rows[~(torch.isfinite(rows) & (rows > 0))][0].item()
        raise CheckpointError(f"{name}: found {worst}, expected a positive finite scale; download the checkpoint again")
    return rows.expand(n).contiguous()


def _block_scale(module: str, blocks: Tensor) -> Tensor:
    """Kernels drop the sign bit, so it must be clear; 0x7F is NaN."""
    worst = int(blocks.view(torch.uint8).max())
    if worst >= 0x7F:
        kind = "NaN" if worst & 0x7F == 0x7F else "a negative value"
        raise CheckpointError(
            f"{module}.weight_scale: found {kind}, expected block scales of 0..448; download it again"
        )
    return blocks
