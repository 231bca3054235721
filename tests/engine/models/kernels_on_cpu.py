"""Torch stand-ins for the CUDA kernels that engine/models/fused.py launches: its wiring is tested without a GPU.

Each takes what the kernel takes, packed units included, and computes what its contract in engine/ops says.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from engine import graphs
from engine.kernels.skinny import Epilogue, Machine
from engine.models import fused, fused_layers
from engine.ops import attention, gdn, norm, rope
from engine.ops.linear import cuda as linear_cuda
from engine.ops.linear.quantize import quantize_per_tensor, quantize_per_token
from engine.ops.moe import cuda as moe_cuda
from engine.ops.norm.cuda import Normed
from engine.ops.w4a16 import wide
from engine.ops.w8a8 import pack as w8a8_pack
from tests.engine.models import mixture_on_cpu
from tests.engine.models.products_on_cpu import eight_bit, four_bit, partial, product, swiglu
from tests.ops.sorted_routing import routing_by_sort


def install(patch: pytest.MonkeyPatch) -> None:
    """Replace every launch; what is left over would fail for want of a CUDA device."""
    for name in ("w4a16", "w4a16_argmax", "w4a16_partial", "w4a16_swiglu", "w8a8", "w8a8_partial"):
        patch.setattr(linear_cuda, name, globals()[name])
    patch.setattr(linear_cuda.library, "call", call)
    patch.setattr(linear_cuda.library, "arch_of", lambda _: "90a")
    patch.setattr(moe_cuda, "machine", lambda _: Machine(multiprocessors=132, max_shared_bytes=227 * 1024))
    patch.setattr(wide, "machine", lambda _: Machine(multiprocessors=132, max_shared_bytes=227 * 1024))
    patch.setattr(torch, "_scaled_mm", scaled_mm)
    patch.setattr(torch, "mm", mm)
    patch.setattr(fused_layers, "add_norm", add_norm)
    patch.setattr(fused_layers, "add_norm_route", add_norm_route)
    patch.setattr(fused_layers, "qk_norm_rope", qk_norm_rope)
    patch.setattr(fused_layers, "attention_gate", attention_gate)
    patch.setattr(fused_layers.gdn_cuda, "decode", gdn_decode)
    patch.setattr(fused_layers.attention_cuda, "decode", attention_decode)
    patch.setattr(fused.attention_cuda, "workspace", lambda *_: None)
    patch.setitem(sys.modules, "engine.ops.gdn.cuda_prefill", SimpleNamespace(prefill=gdn_prefill))
    patch.setattr(graphs.sample_cuda, "workspace", lambda *_: None)
    patch.setattr(graphs.sample_cuda, "argmax", argmax)


def e4m3(x: Tensor, scale: Tensor | None) -> Tensor:
    """bf16 -> quantised for the next product, or as it is."""
    if scale is None:
        return x
    return (x.float() * scale.reciprocal()).clamp(-448, 448).to(torch.float8_e4m3fn)


def w4a16(x: Tensor, units: Tensor, row_scale: Tensor, *, dependent: bool) -> Tensor:
    assert dependent
    return product(x, four_bit(units, row_scale)).bfloat16()


def w4a16_argmax(x: Tensor, units: Tensor, row_scale: Tensor, ids: Tensor, _space: None, *, dependent: bool) -> Tensor:
    logits = w4a16(x, units, row_scale, dependent=dependent)
    argmax(logits, ids, _space, dependent=dependent)
    return logits


def w4a16_partial(x: Tensor, units: Tensor, row_scale: Tensor, *, dependent: bool) -> Tensor:
    assert dependent
    return partial(x, four_bit(units, row_scale), 2)


def w4a16_swiglu(x: Tensor, units: Tensor, row_scale: Tensor, *, dependent: bool) -> Tensor:
    return swiglu(w4a16(x, units, row_scale, dependent=dependent))


def w8a8(x: Tensor, units: Tensor, row_scale: Tensor, *, dependent: bool) -> Tensor:
    assert dependent
    return (product(x, w8a8_pack.unpack(units)) * row_scale).bfloat16()


def w8a8_partial(x: Tensor, units: Tensor, row_scale: Tensor, *, dependent: bool) -> Tensor:
    assert dependent
    return partial(x.float(), w8a8_pack.unpack(units).float(), 2) * row_scale


def call(name: str, _device: torch.device, *arguments: Tensor | int) -> None:
    """The launches of engine/ops/linear/kernel.cu and engine/ops/moe."""
    if name == "engine_w4a16_rows":
        units, row_scale, out = arguments[:3]
        out.copy_(four_bit(units, row_scale))
    elif name == "engine_w8a8_rows":
        arguments[1].view(torch.uint8).copy_(w8a8_pack.unpack(arguments[0]).view(torch.uint8))
    elif name == "engine_swiglu":
        arguments[1].copy_(swiglu(arguments[0]))
    elif name == "engine_w4a16_wide":
        w4a16_wide(*arguments)
    elif name in ("engine_moe_grouped", "engine_moe_grouped_many", "engine_moe_grouped_wide"):
        mixture_on_cpu.grouped(name, four_bit, *arguments)
    elif name in ("engine_moe_grouped_fp8", "engine_moe_grouped_many_fp8"):
        units, row_scale, codes, scales, *rest = arguments
        assert codes.dtype == torch.float8_e4m3fn
        mixture_on_cpu.grouped(
            name.removesuffix("_fp8"), eight_bit, units, row_scale, codes.float() * scales[:, None], *rest
        )
    elif name == "engine_quantize":
        quantize(*arguments)
    elif name == "engine_moe_route_many":
        mixture_on_cpu.route_many(*arguments)
    elif name == "engine_moe_spread":
        mixture_on_cpu.spread(*arguments)
    elif name == "engine_moe_combine":
        mixture_on_cpu.combine(*arguments)
    elif name == "engine_moe_router":
        mixture_on_cpu.router(*arguments)
    else:
        raise AssertionError(f"{name} was launched without a stand-in")


def w4a16_wide(units, row_scale, x, out, m, n, k, parts, epilogue, blocks, dependent):
    assert dependent
    assert blocks > 0
    assert (m, k) == x.shape
    weight = four_bit(units, row_scale)
    assert weight.shape == (n, k)
    if epilogue != Epilogue.PARTIAL:
        y = product(x, weight).bfloat16()
        out.copy_(swiglu(y) if epilogue == Epilogue.SWIGLU else y)
        return
    out.copy_(partial(x, weight, parts))


def quantize(x, given, codes, scales, rows, k, dependent):
    assert dependent
    assert (rows, k) == x.shape
    values, scale = quantize_per_token(x) if given is None else (quantize_per_tensor(x, given), given.expand(rows))
    codes.copy_(values)
    scales.copy_(scale.flatten())


def scaled_mm(a: Tensor, b: Tensor, *, scale_a: Tensor, scale_b: Tensor, out_dtype: torch.dtype) -> Tensor:
    assert scale_a.shape == (a.shape[0], 1)
    assert scale_b.shape == (1, b.shape[1])
    return (product(a, b.t()) * scale_a * scale_b).to(out_dtype)


def mm(a: Tensor, b: Tensor, *, out_dtype: torch.dtype = torch.bfloat16, out: Tensor | None = None) -> Tensor:
    made = product(a, b.t()).to(out_dtype)
    return made if out is None else out.copy_(made)


def add_norm(
    x: Tensor | moe_cuda.WeightedPairs | None,
    residual: Tensor,
    scale: Tensor,
    eps: float,
    *,
    want_out: bool,
    input_scale: Tensor | None,
    small_weight: Tensor | None,
    token_ids: Tensor | None = None,
    fed_ids: Tensor | None = None,
    dependent: bool,
) -> Normed:
    assert dependent == (x is not None), "only the first norm of a step follows what writes the step's inputs"
    assert (token_ids is None) == (x is not None), "it alone looks rows of the embedding up"
    if token_ids is not None and bool((token_ids < 0).any()):
        assert fed_ids is not None
        token_ids = torch.where(token_ids < 0, fed_ids[(-1 - token_ids).clamp_min(0)], token_ids)
    before = residual if token_ids is None else F.embedding(token_ids, residual)
    if isinstance(x, moe_cuda.WeightedPairs):
        assert before.shape[0] > moe_cuda.MAX_ROUTED
        assert x.values.dtype == torch.bfloat16
        weighted = x.values.float() * x.weights[:, None]
        x = weighted.view(before.shape[0], -1, before.shape[1]).transpose(0, 1)
    elif x is not None and x.dtype == torch.bfloat16:
        assert x.shape == (1, *before.shape)
        assert small_weight is None
    added = before if x is None else before + x.float().sum(0).bfloat16()
    out = norm.rms_norm(added, scale, eps)
    return Normed(
        residual=None if x is None and token_ids is None else added,
        out=out if want_out else None,
        quantised=None if input_scale is None else e4m3(out, input_scale),
        small=None if small_weight is None else F.linear(out.float(), small_weight.float()).bfloat16(),
    )


def add_norm_route(
    planes: Tensor,
    residual: Tensor,
    scale: Tensor,
    eps: float,
    router: Tensor,
    top_k: int,
    arrived: Tensor,
    *,
    dependent: bool,
) -> tuple[Normed, moe_cuda.Routing]:
    assert residual.shape[0] <= moe_cuda.MAX_ROUTED
    assert arrived.tolist() == [0]
    normed = add_norm(
        planes,
        residual,
        scale,
        eps,
        want_out=True,
        input_scale=None,
        small_weight=router,
        dependent=dependent,
    )
    assert normed.small is not None
    made = routing_by_sort(normed.small, top_k)
    made.entries[int(made.count) :] = -1  # what is beyond the count must not be read
    return normed, made


def _split(qkvz: Tensor, ba: Tensor, weights: gdn.GdnWeights) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    qkv, z = qkvz.tensor_split((-weights.value_heads * weights.value_dim,), -1)
    return qkv, z, *ba.chunk(2, -1)


def gdn_decode(qkvz, ba, conv_state, state, slots, weights, readers, *, input_scale, dependent):
    assert dependent
    assert readers.numel() >= slots.numel() * weights.key_heads
    return e4m3(gdn.decode(*_split(qkvz, ba, weights), conv_state, state, slots, weights), input_scale)


def gdn_prefill(qkvz, ba, conv_state, state, slot, weights, out, input_scale, count=None):
    """Rows of padding come out as NaN."""
    rows = len(qkvz) if count is None else int(count)
    made = gdn.prefill(*_split(qkvz[:rows], ba[:rows], weights), conv_state, state, int(slot), weights)
    out.view(torch.uint8).fill_(0xFF)
    out[:rows].view(torch.uint8).copy_(e4m3(made, input_scale).view(torch.uint8))


def qk_norm_rope(
    qkv, q_scale, k_scale, eps, cos_sin, positions, kv_slots, k_cache, v_cache, cache_scales, *, dependent
):
    assert dependent
    kv_heads = k_cache.shape[2]
    heads = qkv.shape[1] // 512 - kv_heads
    q_gate, k, v = qkv.tensor_split((512 * heads, (512 * heads) + 256 * kv_heads), -1)
    rows = cos_sin[positions]
    k = rope.apply(norm.rms_norm(k.reshape(-1, kv_heads, 256), k_scale, eps), rows)
    kept = kv_slots >= 0
    attention.write(k_cache, k[kept], kv_slots[kept], cache_scales[0])
    attention.write(v_cache, v.reshape(k.shape)[kept], kv_slots[kept], cache_scales[1])
    return rope.apply(norm.rms_norm(q_gate.reshape(-1, heads, 512)[..., :256], q_scale, eps), rows)


def _gated(mixed: Tensor, qkv: Tensor) -> Tensor:
    heads = mixed.shape[1]
    gate = qkv[:, : 512 * heads].reshape(-1, heads, 512)[..., 256:]
    return (mixed * gate.sigmoid()).flatten(1)


def attention_gate(mixed: Tensor, qkv: Tensor, input_scale: Tensor | None) -> Tensor:
    return e4m3(_gated(mixed, qkv), input_scale)


def attention_decode(
    qkv,
    q_scale,
    k_scale,
    eps,
    cos_sin,
    k_cache,
    v_cache,
    block_table,
    lengths,
    cache_scales,
    _space,
    *,
    input_scale,
    dependent,
):
    assert dependent
    positions, tokens = lengths - 1, k_cache.shape[1]
    slots = block_table.gather(1, (positions // tokens)[:, None])[:, 0] * tokens + positions % tokens
    caches = (k_cache, v_cache, cache_scales)
    q = qk_norm_rope(qkv, q_scale, k_scale, eps, cos_sin, positions, slots, *caches, dependent=True)
    where = attention.pages(block_table, lengths, int(lengths.max()), tokens)
    return e4m3(_gated(attention.decode(q, k_cache, v_cache, where, *cache_scales), qkv), input_scale)


def argmax(logits: Tensor, out: Tensor, _space: None, *, dependent: bool) -> Tensor:
    assert dependent
    return out.copy_(logits.float().argmax(-1))
