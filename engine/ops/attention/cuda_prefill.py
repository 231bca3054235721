"""The output gate over a run of tokens on CUDA, quantised for o_proj; see prefill.cu. head_dim is 256."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels import library


def gate(attention: Tensor, qkv: Tensor, input_scale: Tensor | None) -> Tensor:
    """attention bf16 [tokens, heads, 256], qkv bf16 [tokens, ...] with query and gate of each head in turn, first.

    -> [tokens, heads·256]: attention · sigmoid(gate), e4m3 with input_scale (fp32 []), else bf16.
    """
    tokens, heads, head_dim = attention.shape
    if head_dim != 256 or attention.dtype != torch.bfloat16 or qkv.dtype != torch.bfloat16:
        raise ValueError(
            f"attention: found {attention.dtype} {list(attention.shape)}; expected bf16 [tokens, heads, 256]"
        )
    attention = attention.contiguous()
    dtype = torch.bfloat16 if input_scale is None else torch.float8_e4m3fn
    out = torch.empty(tokens, heads * head_dim, dtype=dtype, device=qkv.device)
    library.call("engine_attention_gate", qkv.device, attention, qkv, input_scale, out, tokens, heads, qkv.stride(0))
    return out
