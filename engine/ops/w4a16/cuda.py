"""W4A16 for up to 32 tokens, as torch custom ops: y = x Wᵀ with W packed by pack.py, no copy and no synchronisation.

`dependent` starts the kernel while its predecessor in the stream drains (programmatic dependent launch); weights are
then read early, so nothing since the last launch without it may have written them (docs/kernels.md).
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels import library
from engine.kernels.skinny import TILE_ROWS, Epilogue, Plan, Unit, machine, plan
from engine.ops.sample.cuda import ArgmaxWorkspace
from engine.ops.w4a16.pack import UNIT_BYTES, UNIT_K

UNIT = Unit(UNIT_K, UNIT_BYTES, 2, 16)


def plan_for(x: Tensor, weight: Tensor, epilogue: Epilogue) -> Plan:
    """Checks the operands and cuts the product. x bf16 [m, k], weight uint8 [n/16, k/256, 2304]."""
    m, k = x.shape
    if x.dtype != torch.bfloat16 or not x.is_contiguous() or weight.dtype != torch.uint8 or not weight.is_contiguous():
        raise ValueError(
            f"w4a16: found x {x.dtype}, weight {weight.dtype}; expected contiguous bfloat16 and uint8 units"
        )
    if weight.shape[1:] != (k // UNIT_K, UNIT_BYTES):
        raise ValueError(
            f"w4a16: found units {list(weight.shape)} for k {k}; expected [n/16, {k // UNIT_K}, {UNIT_BYTES}]"
        )
    return plan(UNIT, weight.shape[0] * TILE_ROWS, k, m, epilogue, machine(x.device))


def run(
    x: Tensor, weight: Tensor, row_scale: Tensor, out: Tensor, cut: Plan, epilogue: Epilogue, dependent: bool
) -> None:
    """Launch with a given cut; `out` as the epilogue says."""
    m, k = x.shape
    n = weight.shape[0] * TILE_ROWS
    sizes = (m, n, k, cut.slices, cut.blocks, cut.phases, cut.windows, int(epilogue), int(dependent))
    library.call("engine_w4a16_skinny", x.device, weight, row_scale, x, out, *sizes)


def run_argmax(
    x: Tensor,
    weight: Tensor,
    row_scale: Tensor,
    out: Tensor,
    ids: Tensor,
    space: ArgmaxWorkspace,
    cut: Plan,
    dependent: bool,
) -> None:
    """`run` with Epilogue.ARGMAX, which writes int64 ids [m] beside `out`."""
    m, k = x.shape
    if ids.dtype != torch.int64 or ids.shape != (m,) or space.best.numel() < m:
        raise ValueError(f"w4a16: found ids {ids.dtype} {list(ids.shape)}; expected int64 [{m}] and as much workspace")
    sizes = (m, weight.shape[0] * TILE_ROWS, k, cut.blocks, cut.phases, cut.windows, int(dependent))
    tensors = (weight, row_scale, x, out, ids, space.best, space.arrived)
    library.call("engine_w4a16_argmax", x.device, *tensors, *sizes)


def w4a16_argmax(
    x: Tensor, weight: Tensor, row_scale: Tensor, ids: Tensor, space: ArgmaxWorkspace, *, dependent: bool = False
) -> Tensor:
    """`w4a16`, and in `ids`, int64 [m], what `sample.cuda.argmax` finds in its output: the lowest row of a tie.

    A plain function: what it is for is to write into the caller's tensors.
    """
    cut = plan_for(x, weight, Epilogue.ARGMAX)
    out = x.new_empty(x.shape[0], weight.shape[0] * TILE_ROWS)
    run_argmax(x, weight, row_scale, out, ids, space, cut, dependent)
    return out


@torch.library.custom_op("engine::w4a16", mutates_args=(), device_types="cuda")
def w4a16(x: Tensor, weight: Tensor, row_scale: Tensor, dependent: bool = False) -> Tensor:
    """bf16 [m, k] -> bf16 [m, n]; row_scale fp32 [n]."""
    cut = plan_for(x, weight, Epilogue.BF16)
    out = x.new_empty(x.shape[0], weight.shape[0] * TILE_ROWS)
    run(x, weight, row_scale, out, cut, Epilogue.BF16, dependent)
    return out


@torch.library.custom_op("engine::w4a16_swiglu", mutates_args=(), device_types="cuda")
def w4a16_swiglu(x: Tensor, weight: Tensor, row_scale: Tensor, dependent: bool = False) -> Tensor:
    """bf16 [m, k] -> silu(gate) · up, bf16 [m, n/2]; rows interleaved by `pack.interleave` before packing."""
    cut = plan_for(x, weight, Epilogue.SWIGLU)
    out = x.new_empty(x.shape[0], weight.shape[0] * TILE_ROWS // 2)
    run(x, weight, row_scale, out, cut, Epilogue.SWIGLU, dependent)
    return out


@torch.library.custom_op("engine::w4a16_partial", mutates_args=(), device_types="cuda")
def w4a16_partial(x: Tensor, weight: Tensor, row_scale: Tensor, dependent: bool = False) -> Tensor:
    """bf16 [m, k] -> fp32 [slices, m, n]: their sum over slices is the product."""
    cut = plan_for(x, weight, Epilogue.PARTIAL)
    out = x.new_empty(cut.slices, x.shape[0], weight.shape[0] * TILE_ROWS, dtype=torch.float32)
    run(x, weight, row_scale, out, cut, Epilogue.PARTIAL, dependent)
    return out


@w4a16.register_fake
def _(x: Tensor, weight: Tensor, row_scale: Tensor, dependent: bool = False) -> Tensor:  # noqa: ARG001
    return x.new_empty(x.shape[0], weight.shape[0] * TILE_ROWS)


@w4a16_swiglu.register_fake
def _(x: Tensor, weight: Tensor, row_scale: Tensor, dependent: bool = False) -> Tensor:  # noqa: ARG001
    return x.new_empty(x.shape[0], weight.shape[0] * TILE_ROWS // 2)


@w4a16_partial.register_fake
def _(x: Tensor, weight: Tensor, row_scale: Tensor, dependent: bool = False) -> Tensor:  # noqa: ARG001
    slices = plan_for(x, weight, Epilogue.PARTIAL).slices
    return x.new_empty(slices, x.shape[0], weight.shape[0] * TILE_ROWS, dtype=torch.float32)
