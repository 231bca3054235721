"""Query and key norm, rotation and cache write of one attention layer: one launch; see kernel.cu. head_dim is 256."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels import library

HEAD_DIM, ROTARY_DIM = 256, 64


def qk_norm_rope(
    qkv: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    eps: float,
    cos_sin: Tensor,
    positions: Tensor,
    kv_slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_scales: tuple[float, float],
    *,
    dependent: bool = False,
) -> Tensor:
    """qkv bf16 [m, (2·heads + 2·kv_heads)·256], query and gate alternating by head -> q bf16 [m, heads, 256].

    q_scale, k_scale fp32 [256] (1 + weight); cos_sin bf16 [positions, 64], the whole table; positions and kv_slots
    int64 [m]. Writes k (rotated) and v to the caches [num_blocks, block_tokens, kv_heads, 256], bf16 or e4m3 of
    value / scale. A row of padding has a kv_slot below 0: its key and value are written nowhere, but its position is
    read, and so must be in the table.
    With `dependent`, neither positions nor kv_slots may have been written since the last
    launch without it (docs/kernels.md).
    """
    m, kv_heads = qkv.shape[0], k_cache.shape[2]
    heads = qkv.shape[1] // (2 * HEAD_DIM) - kv_heads
    if k_cache.shape[3] != HEAD_DIM or cos_sin.shape[1] != ROTARY_DIM or heads < 1 or heads % kv_heads:
        shapes = f"qkv {list(qkv.shape)}, cache {list(k_cache.shape)}, cos_sin {list(cos_sin.shape)}"
        raise ValueError(f"qk_norm_rope: found {shapes}; expected head_dim {HEAD_DIM}, rotary_dim {ROTARY_DIM}")
    if qkv.dtype != torch.bfloat16 or cos_sin.dtype != torch.bfloat16:
        raise ValueError(f"qk_norm_rope: found {qkv.dtype} and cos_sin {cos_sin.dtype}; expected bfloat16")
    out = qkv.new_empty(m, heads, HEAD_DIM)
    fp8 = int(k_cache.dtype == torch.float8_e4m3fn)
    tensors = (qkv, q_scale, k_scale, cos_sin, positions, kv_slots, out, k_cache, v_cache)
    sizes = (m, heads, kv_heads, eps, *map(float, cache_scales), fp8, int(dependent))
    library.call("engine_qk_norm_rope", qkv.device, *tensors, *sizes)
    return out
