"""Gated DeltaNet, one token and one value head at a time, in fp32: the recurrence as the paper writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from engine.ops.gdn import GdnWeights


def run(
    qkv: Tensor, z: Tensor, b: Tensor, a: Tensor, conv_state: Tensor, state: Tensor, weights: GdnWeights
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens of one sequence: qkv [T, C], z [T, Hv·Dv], b, a [T, Hv], conv_state [C, 3], state [Hv, Dv, Dk].

    Returns (out fp32 [T, Hv·Dv], conv_state, state) after the last token; the arguments stay as they were.
    """
    history = torch.cat((conv_state.T.float(), qkv.float()))
    state = state.float().clone()
    key_width = weights.key_heads * weights.key_dim
    rows = []
    for t in range(qkv.shape[0]):
        u = (history[t : t + 4].T * weights.conv).sum(-1)
        u = u / (1 + torch.exp(-u))
        row = []
        for j in range(weights.value_heads):
            i = j // (weights.value_heads // weights.key_heads)
            q = u[i * weights.key_dim : (i + 1) * weights.key_dim]
            k = u[key_width + i * weights.key_dim : key_width + (i + 1) * weights.key_dim]
            v = u[2 * key_width + j * weights.value_dim : 2 * key_width + (j + 1) * weights.value_dim]
            q = q * torch.rsqrt((q * q).sum() + 1e-6) * weights.key_dim**-0.5
            k = k * torch.rsqrt((k * k).sum() + 1e-6)
            decay = torch.exp(weights.decay_rate[j] * torch.log1p(torch.exp(a[t, j].float() + weights.dt_bias[j])))
            beta = 1 / (1 + torch.exp(-b[t, j].float()))
            state[j] *= decay
            state[j] += torch.outer(beta * (v - state[j] @ k), k)
            o = state[j] @ q
            gate = z[t, j * weights.value_dim : (j + 1) * weights.value_dim].float()
            o = o * torch.rsqrt((o * o).mean() + weights.eps) * weights.norm
            row.append(o * gate / (1 + torch.exp(-gate)))
        rows.append(torch.cat(row))
    return torch.stack(rows), history[-3:].T.contiguous(), state
