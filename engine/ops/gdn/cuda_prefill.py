"""A run of tokens of one sequence through Gated DeltaNet on CUDA: convolution, chunked delta rule, gated norm.

The contract is `engine.ops.gdn.prefill`'s, with q | k | v | z and b | a each still in one tensor, and Dk = Dv = 128.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels import library
from engine.ops.gdn import GdnWeights
from engine.ops.gdn.chunked import HEAD_DIM, delta_rule


def prefill(
    qkvz: Tensor,
    ba: Tensor,
    conv_state: Tensor,
    state: Tensor,
    slot: int,
    weights: GdnWeights,
    out: Tensor,
    input_scale: Tensor | None,
) -> None:
    """qkvz bf16 [tokens, C + Hv·128], ba bf16 [tokens, 2·Hv] (b first), the caches as in engine.ops.gdn.

    Writes out [tokens, Hv·128], rows contiguous: e4m3 with input_scale (fp32 []), else bf16.
    """
    tokens, heads = qkvz.shape[0], weights.value_heads
    channels = (2 * weights.key_heads + heads) * HEAD_DIM
    if weights.key_dim != HEAD_DIM or weights.value_dim != HEAD_DIM or qkvz.dtype != torch.bfloat16:
        found = f"Dk {weights.key_dim}, Dv {weights.value_dim}, {qkvz.dtype}"
        raise ValueError(f"gdn: found {found}; expected 128, 128, bf16")
    if qkvz.shape[1] != channels + heads * HEAD_DIM or ba.shape != (tokens, 2 * heads) or not out.is_contiguous():
        raise ValueError(
            f"gdn: found qkvz {list(qkvz.shape)}, ba {list(ba.shape)}; "
            f"expected {[tokens, channels + heads * HEAD_DIM]}, {[tokens, 2 * heads]}"
        )
    device, stride = qkvz.device, qkvz.stride(0)
    mixed = torch.empty(tokens, channels, dtype=torch.bfloat16, device=device)
    library.call("engine_gdn_conv", device, qkvz, weights.conv, conv_state[slot], mixed, tokens, channels, stride)
    o = torch.empty(tokens, heads * HEAD_DIM, dtype=torch.bfloat16, device=device)
    delta_rule(mixed, ba, state[slot], weights, o)
    z = qkvz[:, channels:]
    library.call(
        "engine_gdn_gated_norm", device, o, z, weights.norm, input_scale, out, tokens, heads, stride, weights.eps
    )
