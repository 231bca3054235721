"""One Gated DeltaNet decoding step in one launch, quantised for out_proj; see kernel.cu.

The contract is `engine.ops.gdn.decode`'s, with q | k | v | z and b | a each still in one tensor, as their products left
them, and Dk = Dv = 128.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels import library
from engine.ops.gdn import GdnWeights

HEAD_DIM = 128


def decode(
    qkvz: Tensor,
    ba: Tensor,
    conv_state: Tensor,
    state: Tensor,
    slots: Tensor,
    weights: GdnWeights,
    readers: Tensor,
    *,
    input_scale: Tensor | None = None,
    dependent: bool = False,
) -> Tensor:
    """qkvz bf16 [m, C + Hv·128], ba bf16 [m, 2·Hv] (b first), the caches as in engine.ops.gdn, slots int64 [m].

    readers int32, at least m·Hk zeros, zero again afterwards; one launch at a time may use it. Returns [m, Hv·128]:
    e4m3 with input_scale (fp32 []), else bf16. With `dependent`, neither caches nor
    slots may have been written since the last launch without it (docs/kernels.md).
    """
    m, heads, key_heads = qkvz.shape[0], weights.value_heads, weights.key_heads
    channels = (2 * key_heads + heads) * HEAD_DIM
    if weights.key_dim != HEAD_DIM or weights.value_dim != HEAD_DIM or qkvz.dtype != torch.bfloat16:
        raise ValueError(
            f"gdn: found Dk {weights.key_dim}, Dv {weights.value_dim}, {qkvz.dtype}; expected 128, 128, bf16"
        )
    if qkvz.shape[1] != channels + heads * HEAD_DIM or ba.shape != (m, 2 * heads) or readers.numel() < m * key_heads:
        shapes = f"qkvz {list(qkvz.shape)}, ba {list(ba.shape)}, readers {readers.numel()}"
        raise ValueError(
            f"gdn: found {shapes}; expected {[m, channels + heads * HEAD_DIM]}, {[m, 2 * heads]}, {m * key_heads}"
        )
    dtype = torch.bfloat16 if input_scale is None else torch.float8_e4m3fn
    out = torch.empty(m, heads * HEAD_DIM, dtype=dtype, device=qkvz.device)
    constants = (weights.conv, weights.decay_rate, weights.dt_bias, weights.norm, input_scale)
    sizes = (m, key_heads, heads, weights.eps, int(dependent))
    library.call("engine_gdn_decode", qkvz.device, qkvz, ba, conv_state, state, slots, *constants, out, readers, *sizes)
    return out
