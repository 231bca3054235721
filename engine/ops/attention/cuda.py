"""Decode attention from the projection to o_proj's input, cache write included: one launch; see kernel.cu."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels import library
from engine.ops.rope.cuda import HEAD_DIM, ROTARY_DIM

GROUP = 8
MAX_SPLITS = 64


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where splits leave their parts. One launch at a time may use it; allocate once for the largest batch."""

    partial: Tensor
    """fp32 [parts, 8, 256], parts ≥ m · kv_heads · splits."""
    extremes: Tensor
    """fp32 [parts, 8, 2]."""
    arrived: Tensor
    """int32, at least m · kv_heads zeros; zero again after each launch."""


def workspace(max_sequences: int, kv_heads: int, device: torch.device) -> Workspace:
    """For batches up to max_sequences at `splits_for`'s splits."""
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    parts = max(m * kv_heads * splits_for(m, kv_heads, multiprocessors) for m in range(1, max_sequences + 1))
    return Workspace(
        torch.empty(parts, GROUP, HEAD_DIM, device=device),
        torch.empty(parts, GROUP, 2, device=device),
        torch.zeros(max_sequences * kv_heads, dtype=torch.int32, device=device),
    )


def splits_for(sequences: int, kv_heads: int, multiprocessors: int) -> int:
    """Splits per KV head: one block per multiprocessor, which its registers allow; from the batch alone, for graphs."""
    return max(1, min(MAX_SPLITS, multiprocessors // (sequences * kv_heads)))


def decode(
    qkv: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    eps: float,
    cos_sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    cache_scales: tuple[float, float],
    space: Workspace,
    *,
    splits: int | None = None,
    input_scale: Tensor | None = None,
    dependent: bool = False,
) -> Tensor:
    """qkv bf16 [m, (2·heads + 2·kv_heads)·256], query and gate alternating by head -> [m, heads·256] · sigmoid(gate).

    q_scale, k_scale fp32 [256] (1 + weight); cos_sin bf16 [positions, 64], the whole table. Caches [num_blocks,
    block_tokens, kv_heads, 256] in bf16 or e4m3; block_table int64 [m, width], padding arbitrary; lengths int64 [m],
    the current token included. Row i is the token at position lengths[i] - 1: its key and value go to the slot that
    the table names, the same bits as `rope.cuda.qk_norm_rope` would write. e4m3 with input_scale (fp32 []), else bf16.
    cache_scales belong to e4m3 caches: a checkpoint has them also where the cache is bf16, which holds the values.
    Only the sequences' own tokens are read. With `dependent`, neither block_table nor lengths may have been written
    since the last launch without it (docs/kernels.md).
    """
    m, (block_tokens, kv_heads, head_dim) = qkv.shape[0], k_cache.shape[1:]
    heads = qkv.shape[1] // (2 * HEAD_DIM) - kv_heads
    if head_dim != HEAD_DIM or heads < 1 or heads % kv_heads or heads // kv_heads > GROUP:
        shapes = f"qkv {list(qkv.shape)}, cache {list(k_cache.shape)}"
        raise ValueError(
            f"attention: found {shapes}; expected head_dim {HEAD_DIM} and at most {GROUP} heads per KV head"
        )
    if qkv.dtype != torch.bfloat16 or cos_sin.dtype != torch.bfloat16 or cos_sin.shape[1] != ROTARY_DIM:
        raise ValueError(
            f"attention: found qkv {qkv.dtype}, cos_sin {cos_sin.dtype} {list(cos_sin.shape)}; "
            f"expected bfloat16 and {ROTARY_DIM} columns of cos_sin"
        )
    if block_table.dtype != torch.int64 or lengths.dtype != torch.int64 or not block_table.is_contiguous():
        raise ValueError(
            f"attention: found table {block_table.dtype}, lengths {lengths.dtype}; expected contiguous int64"
        )
    if splits is None:
        splits = splits_for(m, kv_heads, torch.cuda.get_device_properties(qkv.device).multi_processor_count)
    if space.partial.shape[0] < m * kv_heads * splits or space.arrived.numel() < m * kv_heads:
        raise ValueError(f"attention: workspace of {space.partial.shape[0]} parts; expected {m * kv_heads * splits}")
    dtype = torch.bfloat16 if input_scale is None else torch.float8_e4m3fn
    out = torch.empty(m, heads * HEAD_DIM, dtype=dtype, device=qkv.device)
    tensors = (qkv, q_scale, k_scale, cos_sin, k_cache, v_cache, block_table, lengths, input_scale, out)
    fp8 = int(k_cache.dtype == torch.float8_e4m3fn)
    scales = map(float, cache_scales if fp8 else (1.0, 1.0))
    sizes = (m, heads, kv_heads, block_tokens, block_table.shape[1], splits, eps, *scales)
    workspace = (space.partial, space.extremes, space.arrived)
    library.call("engine_attention_decode", qkv.device, *tensors, *workspace, *sizes, fp8, int(dependent))
    return out
