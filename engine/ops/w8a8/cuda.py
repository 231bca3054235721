"""W8A8 for up to 32 tokens, as torch custom ops: y = x Wᵀ with both E4M3, W packed by pack.py; one fp32 scale per row.

The row scale is the weight's times the static input scale. `dependent`: as in engine.ops.w4a16.cuda.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels import library
from engine.kernels.skinny import TILE_ROWS, Epilogue, Plan, Unit, machine, plan
from engine.ops.w8a8.pack import UNIT_K, UNIT_ROWS

UNIT = Unit(UNIT_K, UNIT_K * UNIT_ROWS, 1, 64)


def plan_for(x: Tensor, weight: Tensor, epilogue: Epilogue) -> Plan:
    """Checks the operands and cuts the product. x e4m3 [m, k], weight uint8 [n/16, k/128, 2048]."""
    m, k = x.shape
    if (
        x.dtype != torch.float8_e4m3fn
        or not x.is_contiguous()
        or weight.dtype != torch.uint8
        or not weight.is_contiguous()
    ):
        raise ValueError(
            f"w8a8: found x {x.dtype}, weight {weight.dtype}; expected contiguous float8_e4m3fn, uint8 units"
        )
    if weight.shape[1:] != (k // UNIT_K, UNIT.nbytes):
        raise ValueError(
            f"w8a8: found units {list(weight.shape)} for k {k}; expected [n/16, {k // UNIT_K}, {UNIT.nbytes}]"
        )
    return plan(UNIT, weight.shape[0] * TILE_ROWS, k, m, epilogue, machine(x.device))


def run(
    x: Tensor, weight: Tensor, row_scale: Tensor, out: Tensor, cut: Plan, epilogue: Epilogue, dependent: bool
) -> None:
    """Launch with a given cut; `out` as the epilogue says."""
    m, k = x.shape
    n = weight.shape[0] * TILE_ROWS
    sizes = (m, n, k, cut.slices, cut.blocks, cut.phases, cut.windows, int(epilogue), int(dependent))
    library.call("engine_w8a8_skinny", x.device, weight, row_scale, x, out, *sizes)


@torch.library.custom_op("engine::w8a8", mutates_args=(), device_types="cuda")
def w8a8(x: Tensor, weight: Tensor, row_scale: Tensor, dependent: bool = False) -> Tensor:
    """e4m3 [m, k] -> bf16 [m, n]; row_scale fp32 [n]."""
    cut = plan_for(x, weight, Epilogue.BF16)
    out = x.new_empty(x.shape[0], weight.shape[0] * TILE_ROWS, dtype=torch.bfloat16)
    run(x, weight, row_scale, out, cut, Epilogue.BF16, dependent)
    return out


@torch.library.custom_op("engine::w8a8_partial", mutates_args=(), device_types="cuda")
def w8a8_partial(x: Tensor, weight: Tensor, row_scale: Tensor, dependent: bool = False) -> Tensor:
    """e4m3 [m, k] -> fp32 [slices, m, n]: their sum over slices is the product."""
    cut = plan_for(x, weight, Epilogue.PARTIAL)
    out = x.new_empty(cut.slices, x.shape[0], weight.shape[0] * TILE_ROWS, dtype=torch.float32)
    run(x, weight, row_scale, out, cut, Epilogue.PARTIAL, dependent)
    return out


@w8a8.register_fake
def _(x: Tensor, weight: Tensor, row_scale: Tensor, dependent: bool = False) -> Tensor:  # noqa: ARG001
    return x.new_empty(x.shape[0], weight.shape[0] * TILE_ROWS, dtype=torch.bfloat16)


@w8a8_partial.register_fake
def _(x: Tensor, weight: Tensor, row_scale: Tensor, dependent: bool = False) -> Tensor:  # noqa: ARG001
    slices = plan_for(x, weight, Epilogue.PARTIAL).slices
    return x.new_empty(slices, x.shape[0], weight.shape[0] * TILE_ROWS, dtype=torch.float32)
