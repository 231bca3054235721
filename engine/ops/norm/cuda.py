"""Residual add, zero-centred RMSNorm, static E4M3 quantisation and a small bf16 product of the result: one launch.

The form that decoding needs of `add_rms_norm`: x arrives as the fp32 planes of a sliced product. `dependent` starts the
kernel while its predecessor drains.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels import library
from engine.ops.moe.cuda import MAX_EXPERTS, MAX_ROUTED, MAX_SLOTS, Routing, unset_routing

MAX_WIDTH = 5120


@dataclass(frozen=True, slots=True)
class Normed:
    """What was asked for; None otherwise."""

    residual: Tensor | None
    """bf16 [m, n]: residual + x, or rows of the embedding. None without planes and ids: then it is the argument."""
    out: Tensor | None
    """bf16 [m, n]."""
    quantised: Tensor | None
    """e4m3 [m, n]."""
    small: Tensor | None
    """bf16 [m, rows]: out · small_weightᵀ, accumulated in fp32."""


def add_norm(
    planes: Tensor | None,
    residual: Tensor,
    scale: Tensor,
    eps: float,
    *,
    want_out: bool = True,
    input_scale: Tensor | None = None,
    small_weight: Tensor | None = None,
    token_ids: Tensor | None = None,
    fed_ids: Tensor | None = None,
    dependent: bool = False,
) -> Normed:
    """planes fp32 [slices, m, n] or None, residual bf16 [m, n], scale fp32 [n] (1 + weight).

    token_ids int64 [m], read after the predecessor has ended: `residual` is then the embedding, bf16 [vocab_size, n],
    and its rows of these ids are normed. No planes then; an id outside of the embedding is not noticed here. A negative
    one, -1 - r, stands for fed_ids[r], int64: an id that the step before leaves on the device.
    input_scale fp32 []: quantise too. small_weight bf16 [rows, n]: multiply too. ValueError for other shapes or dtypes.
    """
    m, n, slices = _sizes(planes, residual, scale, token_ids)
    rows = 0 if small_weight is None else small_weight.shape[0]
    result = Normed(
        residual=None if planes is None and token_ids is None else residual.new_empty(m, n),
        out=residual.new_empty(m, n) if want_out else None,
        quantised=None if input_scale is None else residual.new_empty(m, n, dtype=torch.float8_e4m3fn),
        small=residual.new_empty(m, rows) if rows else None,
    )
    tensors = (
        planes,
        residual,
        token_ids,
        fed_ids,
        result.residual,
        scale,
        result.out,
        result.quantised,
        input_scale,
        small_weight,
        result.small,
    )
    library.call("engine_add_norm", residual.device, *tensors, m, n, slices, rows, eps, int(dependent))
    return result


def add_norm_route(
    planes: Tensor | None,
    residual: Tensor,
    scale: Tensor,
    eps: float,
    router: Tensor,
    top_k: int,
    arrived: Tensor,
    *,
    dependent: bool = False,
) -> tuple[Normed, Routing]:
    """What `add_norm` with small_weight=router and `moe.cuda.routing` of the result leave, bit for bit, in one launch.

    m at most 32 tokens; router bf16 [experts + 1, n], the last row the shared expert's gate; arrived int32 [1], zero
    before and after: one launch at a time may use it. ValueError for other shapes or dtypes.
    """
    m, n, slices = _sizes(planes, residual, scale)
    experts = router.shape[0] - 1
    if m > MAX_ROUTED or experts > MAX_EXPERTS or top_k >= MAX_SLOTS:
        raise ValueError(
            f"add_norm_route: found {m} tokens, {experts} experts, top {top_k}; expected at most {MAX_ROUTED}, "
            f"{MAX_EXPERTS} and {MAX_SLOTS - 1}"
        )
    if router.dtype != torch.bfloat16 or router.shape[1] != n or not router.is_contiguous():
        raise ValueError(
            f"add_norm_route: found router {router.dtype} {list(router.shape)}; expected contiguous bf16 with {n} "
            "columns"
        )
    normed = Normed(
        residual=None if planes is None else torch.empty_like(residual),
        out=torch.empty_like(residual),
        quantised=None,
        small=residual.new_empty(m, experts + 1),
    )
    made = unset_routing(m, top_k, residual.device)
    tensors = (planes, residual, normed.residual, scale, normed.out, router, normed.small, *made.tensors, arrived)
    sizes = (m, n, slices, experts, made.slots)
    library.call("engine_add_norm_route", residual.device, *tensors, *sizes, eps, int(dependent))
    return normed, made


def _sizes(
    planes: Tensor | None, residual: Tensor, scale: Tensor, token_ids: Tensor | None = None
) -> tuple[int, int, int]:
    """(m, n, slices)."""
    m, n = residual.shape
    if token_ids is not None:
        if token_ids.dtype != torch.int64 or token_ids.dim() != 1 or not token_ids.is_contiguous():
            raise ValueError(
                f"add_norm: found token ids {token_ids.dtype} {list(token_ids.shape)}; expected contiguous int64 [m]"
            )
        if planes is not None:
            raise ValueError("add_norm: found token ids and planes; expected one of them")
        m = token_ids.shape[0]
    if n % 8 or n > MAX_WIDTH or (planes is not None and planes.shape[1:] != (m, n)):
        found = None if planes is None else list(planes.shape)
        raise ValueError(
            f"add_norm: found residual {[m, n]}, planes {found}; expected n a multiple of 8, at most {MAX_WIDTH}"
        )
    if residual.dtype != torch.bfloat16 or scale.dtype != torch.float32 or scale.shape != (n,):
        raise ValueError(
            f"add_norm: found {residual.dtype}, scale {scale.dtype} {list(scale.shape)}; expected bf16, fp32 [{n}]"
        )
    return m, n, 0 if planes is None else planes.shape[0]
