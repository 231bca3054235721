"""Residual add, zero-centred RMSNorm, static E4M3 quantisation and a small bf16 product of the result: one launch.

The forms of `add_rms_norm` that a step needs: x arrives as the fp32 planes of a sliced product, in bf16 from a
library's, or by pair from a mixture's experts. `dependent` starts the kernel while its predecessor drains.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels import library
from engine.ops.moe.cuda import MAX_EXPERTS, MAX_ROUTED, MAX_SLOTS, Routing, WeightedPairs, unset_routing

MAX_WIDTH = 5120


@dataclass(frozen=True, slots=True)
class Normed:
    """What was asked for; None otherwise."""

    residual: Tensor | None
    """bf16 [m, n]: residual + x, or rows of the embedding. None without x and ids: then it is the argument."""
    out: Tensor | None
    """bf16 [m, n]."""
    quantised: Tensor | None
    """e4m3 [m, n]."""
    small: Tensor | None
    """bf16 [m, rows]: out · small_weightᵀ, accumulated in fp32."""


def add_norm(
    x: Tensor | WeightedPairs | None,
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
    """residual bf16 [m, n], scale fp32 [n] (1 + weight).

    x: fp32 planes [slices, m, n], whose sum it is; or bf16 [1, m, n]; or the pairs of m tokens; None: nothing is added.

    token_ids int64 [m], read after the predecessor has ended: `residual` is then the embedding, bf16 [vocab_size, n],
    and its rows of these ids are normed. No x then; an id outside of the embedding is not noticed here. A negative
    one, -1 - r, stands for fed_ids[r], int64: an id that the step before leaves on the device.
    input_scale fp32 []: quantise too. small_weight bf16 [rows, n]: multiply too, not with x in bf16. ValueError for
    other shapes or dtypes.
    """
    m, n = _sizes(residual, scale, token_ids)
    if x is not None and token_ids is not None:
        raise ValueError("add_norm: found token ids and x; expected one of them")
    planes, pairs, weights, slices = _parts(x, m, n)
    rows = 0 if small_weight is None else small_weight.shape[0]
    if pairs is not None and rows:
        raise ValueError(f"add_norm: found x in bf16 and a small product of {rows} rows; expected planes in fp32 there")
    result = Normed(
        residual=None if x is None and token_ids is None else residual.new_empty(m, n),
        out=residual.new_empty(m, n) if want_out else None,
        quantised=None if input_scale is None else residual.new_empty(m, n, dtype=torch.float8_e4m3fn),
        small=residual.new_empty(m, rows) if rows else None,
    )
    tensors = (
        planes,
        pairs,
        weights,
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
    m, n = _sizes(residual, scale)
    planes, pairs, _, slices = _parts(planes, m, n)
    if pairs is not None:
        raise ValueError("add_norm_route: found x in bf16; expected planes in fp32")
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


def _sizes(residual: Tensor, scale: Tensor, token_ids: Tensor | None = None) -> tuple[int, int]:
    """(m, n)."""
    m, n = residual.shape
    if token_ids is not None:
        if token_ids.dtype != torch.int64 or token_ids.dim() != 1 or not token_ids.is_contiguous():
            raise ValueError(
                f"add_norm: found token ids {token_ids.dtype} {list(token_ids.shape)}; expected contiguous int64 [m]"
            )
        m = token_ids.shape[0]
    if n % 8 or n > MAX_WIDTH:
        raise ValueError(f"add_norm: found residual {[m, n]}; expected n a multiple of 8, at most {MAX_WIDTH}")
    if residual.dtype != torch.bfloat16 or scale.dtype != torch.float32 or scale.shape != (n,):
        raise ValueError(
            f"add_norm: found {residual.dtype}, scale {scale.dtype} {list(scale.shape)}; expected bf16, fp32 [{n}]"
        )
    return m, n


def _parts(x: Tensor | WeightedPairs | None, m: int, n: int) -> tuple[Tensor | None, Tensor | None, Tensor | None, int]:
    """(planes, pairs, their weights, how many of the one or of the other a token has)."""
    if x is None:
        return None, None, None, 0
    if isinstance(x, WeightedPairs):
        slots = x.weights.numel() // m
        for name, tensor, dtype, shape in (
            ("pairs", x.values, torch.bfloat16, (m * slots, n)),
            ("weights", x.weights, torch.float32, (m * slots,)),
        ):
            if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous():
                raise ValueError(
                    f"add_norm: found {name} {tensor.dtype} {list(tensor.shape)}; expected contiguous {dtype} "
                    f"{list(shape)}"
                )
        return None, x.values, x.weights, slots
    fits = x.dim() == 3 and x.shape[1:] == (m, n) and x.is_contiguous()
    if not fits or not (x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and x.shape[0] == 1)):
        raise ValueError(
            f"add_norm: found planes {x.dtype} {list(x.shape)}; expected contiguous fp32 [slices, {m}, {n}] or bf16 "
            f"[1, {m}, {n}]"
        )
    return (x, None, None, x.shape[0]) if x.dtype == torch.float32 else (None, x, None, 1)
