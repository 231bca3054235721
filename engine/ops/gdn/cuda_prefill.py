"""A run of tokens of one sequence through Gated DeltaNet on CUDA: convolution, chunked delta rule, gated norm.

The contract is `engine.ops.gdn.prefill`'s, with q | k | v | z and b | a each still in one tensor, and Dk = Dv = 128.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels import library
from engine.ops.gdn import GdnWeights
from engine.ops.gdn.chunked import HEAD_DIM, NO_SCAN, by_scan, delta_rule


def prefill(
    qkvz: Tensor,
    ba: Tensor,
    conv_state: Tensor,
    state: Tensor,
    slot: int | Tensor,
    weights: GdnWeights,
    out: Tensor,
    input_scale: Tensor | None,
    count: Tensor | None = None,
) -> None:
    """qkvz bf16 [tokens, C + Hv·128], ba bf16 [tokens, 2·Hv] (b first), the caches as in engine.ops.gdn.

    Writes out [tokens, Hv·128], rows contiguous: e4m3 with input_scale (fp32 []), else bf16.

    For a CUDA graph of a padded run, both on the device: slot int64 [1], and count int32 [1], of 1 to tokens: only so
    many rows are live. The others may hold anything, NaN too, and their rows of out then do; the caches do not know of
    them. ValueError for other dtypes and shapes, and for either where scan.cu does not scan (`chunked.by_scan`).
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
    device, stride, where = qkvz.device, qkvz.stride(0), None
    if isinstance(slot, Tensor):
        where = _one("slot", slot, torch.int64, device)
    else:
        conv_state, state = conv_state[slot], state[slot]
    if count is not None:
        _one("count", count, torch.int32, device)
    if (where is not None or count is not None) and not by_scan(device):  # before anything is written
        raise ValueError(NO_SCAN)
    mixed = torch.empty(tokens, channels, dtype=torch.bfloat16, device=device)
    tensors = (qkvz, weights.conv, conv_state, mixed, count, where)
    library.call("engine_gdn_conv", device, *tensors, tokens, channels, stride, conv_state.stride(0))
    o = torch.empty(tokens, heads * HEAD_DIM, dtype=torch.bfloat16, device=device)
    delta_rule(mixed, ba, state, weights, o, slot=where, count=count)
    z = qkvz[:, channels:]
    library.call(
        "engine_gdn_gated_norm", device, o, z, weights.norm, input_scale, out, tokens, heads, stride, weights.eps
    )


def _one(name: str, tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    if tensor.dtype != dtype or tensor.shape != (1,) or tensor.device != device:
        found = f"{name} {tensor.dtype} {list(tensor.shape)} on {tensor.device}"
        raise ValueError(f"gdn: found {found}; expected {dtype} [1] on {device}")
    return tensor
