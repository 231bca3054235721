"""Grouped-query attention over a paged KV cache.

Contract. Caches are [num_blocks, block_tokens, kv_heads, head_dim], keys after norm and rotation, in the activation
dtype or float8_e4m3fn; with FP8 an entry stands for value · scale (`k_scale`, `v_scale`: Python floats). Query head
h reads KV head h // (heads / kv_heads). Softmax is fp32.

* `write(cache, values, slots, scale)`: values [tokens, kv_heads, head_dim] to flat token slots int64 [tokens]
  (block · block_tokens + offset).
* `decode(q, k_cache, v_cache, pages, ...)`: q [sequences, heads, head_dim], one token each, attending to the
  tokens of its sequence, its own included -> the same shape. `pages(...)` says where they lie, once per step.
* `prefill(q, k_cache, v_cache, slots, position, ...)`: q [tokens, heads, head_dim] at positions position.. of one
  sequence, causal over everything before -> the same shape.

Only slots of the sequence's own tokens are read: what the rest of a block holds, even NaN, has no influence.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from engine.ops.linear.quantize import E4M3_MAX

DEVICES = frozenset({"cpu", "cuda"})


@dataclass(frozen=True, slots=True)
class Pages:
    """Where the tokens of the decoding sequences lie. Made once per step and shared by all layers."""

    slots: Tensor
    """int64 [sequences, longest]: flat slot of each token; past a sequence's end its first token's slot, never
    foreign.
    """
    mask: Tensor
    """bool [sequences, 1, 1, longest]: True where the sequence has a token."""


def pages(block_table: Tensor, lengths: Tensor, longest: int, block_tokens: int) -> Pages:
    """block_table int64 [sequences, blocks] (padding arbitrary), lengths int64 [sequences], longest =
    max(lengths).
    """
    offset = torch.arange(block_tokens, device=block_table.device)
    slots = (block_table[:, :, None] * block_tokens + offset).flatten(1)[:, :longest]
    mask = torch.arange(longest, device=lengths.device) < lengths[:, None]
    return Pages(torch.where(mask, slots, slots[:, :1]), mask[:, None, None])


def write(cache: Tensor, values: Tensor, slots: Tensor, scale: float) -> None:
    """Store values in place."""
    flat = cache.view(-1, *cache.shape[2:])
    if cache.dtype == torch.float8_e4m3fn:
        codes = (values.float() / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
        # Indexed writes exist for bytes on every device, for float8 not.
        flat.view(torch.uint8).index_copy_(0, slots, codes.view(torch.uint8))
    else:
        flat.index_copy_(0, slots, values)


def _read(cache: Tensor, slots: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """The tokens at `slots` [...] -> [..., kv_heads, head_dim]."""
    coded = cache.dtype == torch.float8_e4m3fn
    flat = cache.view(torch.uint8) if coded else cache
    rows = flat.view(-1, *cache.shape[2:]).index_select(0, slots.flatten())
    if coded:
        rows = (rows.view(torch.float8_e4m3fn).float() * scale).to(dtype)
    return rows.view(*slots.shape, *cache.shape[2:])


def decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, where: Pages, k_scale: float, v_scale: float) -> Tensor:
    """[sequences, heads, head_dim] -> the same."""
    sequences, heads, head_dim = q.shape
    k = _read(k_cache, where.slots, q.dtype, k_scale).transpose(1, 2)
    v = _read(v_cache, where.slots, q.dtype, v_scale).transpose(1, 2)
    # The heads of one group are rows of one small product: no key is repeated.
    grouped = q.reshape(sequences, k.shape[1], -1, head_dim)
    # By name on CUDA, where this is what kernels are held against, and torch's own choice changes with the shape.
    with sdpa_kernel(SDPBackend.MATH) if q.is_cuda else nullcontext():
        out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=where.mask)
    return out.reshape(sequences, heads, head_dim)


def prefill(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, position: int, k_scale: float, v_scale: float
) -> Tensor:
    """[tokens, heads, head_dim] -> the same; slots int64 [position + tokens], the sequence's tokens in order."""
    tokens, heads, head_dim = q.shape
    k = _read(k_cache, slots, q.dtype, k_scale).transpose(0, 1)
    v = _read(v_cache, slots, q.dtype, v_scale).transpose(0, 1)
    kv_heads = k.shape[0]
    group = heads // kv_heads
    grouped = q.transpose(0, 1).reshape(kv_heads, group, tokens, head_dim)
    k = k[:, None].expand(-1, group, -1, -1)
    v = v[:, None].expand(-1, group, -1, -1)
    return _causal(grouped, k, v, position).reshape(heads, tokens, head_dim).transpose(0, 1)


def _causal(q: Tensor, k: Tensor, v: Tensor, position: int) -> Tensor:
    """[.., tokens, head_dim] over keys [.., position + tokens, head_dim]: row i sees keys 0 to position + i."""
    if q.is_cuda and q.dtype == torch.bfloat16:
        # By name: left to choose, torch may take cuDNN on a Hopper, which makes a plan for every new pair of lengths.
        # In the first gate run on an H200 steps with a chunk of a new length took 320 ms, and 200 once it had been seen
        # (docs/kernels.md). The mask of this operator ends at the lower right.
        out: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal=True)[0]
        return out
    if position == 0:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    key = torch.arange(k.shape[-2], device=q.device)
    # By name on CUDA: in fp32 torch 2.11 chooses memory-efficient attention, which masks wrongly where the rows are one
    # more than a multiple of 32 (results/h200/tests/20261130-209203f-causal-attention.txt).
    with sdpa_kernel(SDPBackend.MATH) if q.is_cuda else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=key <= key[position:, None])
