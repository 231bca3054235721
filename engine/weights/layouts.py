"""From a scheme to the tensors that store one linear layer, and from those tensors to the resident weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def stacked_layout(scheme: Scheme, experts: int, n: int, k: int) -> Mapping[str, Spec]:
    """The same for `experts` layers [n, k] stored as one: each tensor with the experts in front, or one scale for all.

    An unquantised stack has no attribute: its name is "".
    """
    single = layout(scheme, n, k)
    if scheme is Scheme.NONE:
        return {"": Spec(FLOATS, ((experts, n, k),))}
    return {
        name: Spec(
            spec.dtypes,
            tuple(dict.fromkeys((experts, *s) for s in spec.shapes))
            + (((experts, 1, 1), *SCALAR) if () in spec.shapes else ()),
            spec.required,
        )
        for name, spec in single.items()
    }


Read = Callable[[str], Tensor]
"""attribute -> that tensor of each module of a list, [modules, *shape]; scales may be on the CPU."""


def build(scheme: Scheme, module: str, n: int, read: Read) -> Weight:
    """One layer [n, k] from its tensors, each read as a stack of one; the values are checked.

    Raises CheckpointError for a NaN, infinite, zero or negative scale, and for NaN or infinity in an FP8 or unquantised
    matrix.
    """
    match scheme:
        case Scheme.NONE:
            return DenseWeight(numbers(f"{module}.weight", read("weight")[0]))
        case Scheme.NVFP4 | Scheme.NVFP4_PACKED:
            return build_nvfp4(scheme, [module], n, read)
        case Scheme.FP8_STATIC | Scheme.FP8_DYNAMIC:
            return build_fp8(scheme, [module], n, read)


def build_fp8(scheme: Scheme, modules: Sequence[str], n: int, read: Read) -> Fp8Weight:
    """As build_nvfp4. A static input scale is the largest of all modules', as in `fuse`."""
    weight = read("weight")
    try:  # looked through as one, and matrix by matrix only to name the one that has it
        numbers(f"{modules[0]}.weight", weight)
    except CheckpointError:
        for module, matrix in zip(modules, weight, strict=True):
            numbers(f"{module}.weight", matrix)
        raise
    rows = _row_scale(modules, "weight_scale", read("weight_scale"), n).to(weight.device)
    scale = None
    if scheme is Scheme.FP8_STATIC:
        scale = _row_scale(modules, "input_scale", read("input_scale"), 1).amax().to(weight.device)
    return Fp8Weight(weight.flatten(0, 1), rows, scale)


def build_nvfp4(scheme: Scheme, modules: Sequence[str], n: int, read: Read) -> Nvfp4Weight:
    """The rows of several layers [n, k], one layer's after another's: [modules · n, k]. Raises as `build` does."""
    packed = read("weight" if scheme is Scheme.NVFP4 else "weight_packed").flatten(0, 1)
    blocks = read("weight_scale")
    _check_block_scales(modules, blocks)
    if scheme is Scheme.NVFP4:
        scale = _row_scale(modules, "weight_scale_2", read("weight_scale_2"), n)
    else:
        name = "weight_global_scale"
        scale = _row_scale(modules, name, read(name), n, is_divisor=True).reciprocal()
    return Nvfp4Weight(packed, blocks.flatten(0, 1), scale.to(packed.device))


def _row_scale(modules: Sequence[str], attribute: str, stored: Tensor, n: int, *, is_divisor: bool = False) -> Tensor:
    """One module's [] [1] [n] [n, 1] behind another's -> f32 [modules · n], positive and finite."""
    scales = stored.float().reshape(len(modules), -1)
    wrong = ~(torch.isfinite(scales) & (scales > 0))
    if is_divisor:
        wrong |= ~torch.isfinite(scales.reciprocal())
    if bool(wrong.any()):
        at = wrong.nonzero()[0].tolist()
        raise CheckpointError(
            f"{modules[at[0]]}.{attribute}: found {scales[at[0], at[1]].item()}, expected a positive finite scale; "
            "download the checkpoint again"
        )
    return scales.expand(-1, n).reshape(-1)


def _check_block_scales(modules: Sequence[str], blocks: Tensor) -> None:
    """Kernels drop the sign bit, so it must be clear; 0x7F is NaN."""
    worst = blocks.view(torch.uint8).flatten(1).amax(1).tolist()
    for module, byte in zip(modules, worst, strict=True):
        if byte >= 0x7F:
            kind = "NaN" if byte & 0x7F == 0x7F else "a negative value"
            raise CheckpointError(
                f"{module}.weight_scale: found {kind}, expected block scales of 0..448; download it again"
            )


CHECKED_AT_ONCE = 2**24
"""Bytes of a matrix that are looked through together: what the search holds beside it is at most twice as large."""


def numbers(name: str, tensor: Tensor) -> Tensor:
    """The tensor itself. Raises CheckpointError for a NaN or an infinity in it, of which every answer would be made."""
    for part in torch.split(tensor.flatten(), CHECKED_AT_ONCE // tensor.itemsize):
        wrong = _not_finite(part)
        if bool(wrong.any()):
            found = part[int(wrong.nonzero()[0])].float().item()
            raise CheckpointError(f"{name}: found {found}, expected finite numbers; download the checkpoint again")
    return tensor


def _not_finite(values: Tensor) -> Tensor:
    if values.dtype == torch.float8_e4m3fn:  # has no infinity, and no device compares two
        return (values.view(torch.uint8) & 0x7F) == 0x7F
    return ~values.isfinite()
