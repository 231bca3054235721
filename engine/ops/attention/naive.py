"""Attention of one query token over one sequence, one head at a time, in fp32."""

from __future__ import annotations

import torch
from torch import Tensor


def attend(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_ids: list[int], length: int, k_scale: float, v_scale: float
) -> Tensor:
    """q [heads, head_dim] of token length-1; caches [num_blocks, block_tokens, kv_heads, head_dim] -> fp32 q's
    shape.
    """
    heads, head_dim = q.shape
    block_tokens, kv_heads = k_cache.shape[1:3]
    out = torch.empty(heads, head_dim)
    for head in range(heads):
        kv_head = head // (heads // kv_heads)
        scores, values = [], []
        for token in range(length):
            block, offset = block_ids[token // block_tokens], token % block_tokens
            key = k_cache[block, offset, kv_head].float() * k_scale
            scores.append(torch.dot(q[head].float(), key) * head_dim**-0.5)
            values.append(v_cache[block, offset, kv_head].float() * v_scale)
        out[head] = torch.stack(scores).softmax(0) @ torch.stack(values)
    return out
