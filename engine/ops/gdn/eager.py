"""Gated DeltaNet in torch operators: one step vectorised over sequences, and the chunked form over one sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.ops.norm import gated_rms_norm

if TYPE_CHECKING:
    from engine.ops.gdn import GdnWeights

CHUNK_TOKENS = 64
"""Tokens per chunk: the size of the triangular system. Flash linear attention and vLLM use the same."""

L2_EPS = 1e-6
"""Added to the sum of squares of a query or key head, as in flash linear attention."""


def decode(
    qkv: Tensor, z: Tensor, b: Tensor, a: Tensor, conv_state: Tensor, state: Tensor, slots: Tensor, weights: GdnWeights
) -> Tensor:
    """See engine.ops.gdn."""
    window = torch.cat((conv_state.index_select(0, slots), qkv[:, :, None]), -1)
    conv_state.index_copy_(0, slots, window[:, :, 1:])
    mixed = F.silu((window * weights.conv).sum(-1)).to(qkv.dtype)
    q, k, v = _heads(mixed, weights)
    log_decay, beta = _gates(b, a, weights)

    sequences, repeat = qkv.shape[0], weights.value_heads // weights.key_heads
    # The value heads of one key head lie together, so broadcasting repeats q and k without copying them.
    shape = (sequences, weights.key_heads, repeat * weights.value_dim, weights.key_dim)
    current = state.index_select(0, slots) * log_decay.exp()[:, :, None, None]
    grouped = current.view(shape)
    q, k = q[:, :, None], k[:, :, None]
    # Products and sums, not bmm: torch's batched matrix-vector products are ten times slower on a CPU.
    predicted = (grouped * k).sum(-1).view_as(v)
    error = (v - predicted) * beta[:, :, None]
    grouped.addcmul_(error.view(*shape[:3], 1), k)
    out = (grouped * q).sum(-1).view_as(v)
    state.index_copy_(0, slots, current)
    return _finish(out, z, weights)


def prefill(
    qkv: Tensor, z: Tensor, b: Tensor, a: Tensor, conv_state: Tensor, state: Tensor, slot: int, weights: GdnWeights
) -> Tensor:
    """See engine.ops.gdn."""
    tokens = qkv.shape[0]
    taps = weights.conv.shape[1]
    history = torch.cat((conv_state[slot].T, qkv))
    conv_state[slot] = history[-(taps - 1) :].T
    mixed = sum(history[tap : tap + tokens] * weights.conv[:, tap] for tap in range(taps))
    assert isinstance(mixed, Tensor)
    q, k, v = _heads(F.silu(mixed).to(qkv.dtype), weights)
    log_decay, beta = _gates(b, a, weights)

    chunk = min(CHUNK_TOKENS, tokens)
    q, k, v, log_decay, beta = (_chunks(x, chunk) for x in (q, k, v, log_decay, beta))
    repeat = weights.value_heads // weights.key_heads
    q, k = q.repeat_interleave(repeat, 0), k.repeat_interleave(repeat, 0)
    out, final = delta_rule(q, k, v, log_decay, beta, state[slot])
    state[slot] = final
    out = out.flatten(1, 2)[:, :tokens].transpose(0, 1)
    return _finish(out, z, weights)


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The chunked gated delta rule, fp32: q, k [H, chunks, C, Dk], v [H, chunks, C, Dv], gates [H, chunks, C].

    state [H, Dv, Dk] on entry -> (out [H, chunks, C, Dv], state on exit). Within a chunk the C updates are one unit
    lower triangular system (the UT transform of Yang et al., "Gated Delta Networks"); only chunks are sequential.
    """
    total = log_decay.cumsum(-1)
    length = total.shape[-1]
    later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    # Masked before the exponential: above the diagonal the exponent is positive and may overflow.
    pair_decay = (total[..., :, None] - total[..., None, :]).masked_fill(later, float("-inf")).exp()
    k_beta = k * beta[..., None]
    keys = k.transpose(-1, -2)
    # Only the strict lower triangle of the system is read (unitriangular), so its diagonal may hold anything.
    system = (k_beta @ keys) * pair_decay
    right = torch.cat((v * beta[..., None], k_beta * total.exp()[..., None]), -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    new_v, read_k = solved.split((v.shape[-1], k.shape[-1]), -1)
    within = (q @ keys) * pair_decay
    q = q * total.exp()[..., None]
    k = k * (total[..., -1:] - total).exp()[..., None]
    chunk_decay = total[..., -1].exp()[..., None, None]
    out = torch.empty_like(v)
    for i in range(q.shape[1]):
        correction = new_v[:, i] - read_k[:, i] @ state.transpose(1, 2)
        out[:, i] = q[:, i] @ state.transpose(1, 2) + within[:, i] @ correction
        state = state * chunk_decay[:, i] + correction.transpose(1, 2) @ k[:, i]
    return out, state


def _heads(mixed: Tensor, weights: GdnWeights) -> tuple[Tensor, Tensor, Tensor]:
    """[tokens, C] -> q, k [tokens, Hk, Dk] normalised (q also scaled by Dk^-1/2), v [tokens, Hv, Dv]; fp32."""
    tokens = mixed.shape[0]
    width = 2 * weights.key_heads * weights.key_dim
    qk = mixed[:, :width].view(tokens, 2, weights.key_heads, weights.key_dim).float()
    qk = qk * torch.rsqrt((qk * qk).sum(-1, keepdim=True) + L2_EPS)
    v = mixed[:, width:].reshape(tokens, weights.value_heads, weights.value_dim).float()
    return qk[:, 0] * weights.key_dim**-0.5, qk[:, 1], v


def _gates(b: Tensor, a: Tensor, weights: GdnWeights) -> tuple[Tensor, Tensor]:
    """[tokens, Hv] each -> log of the decay (never positive) and write strength in (0, 1), fp32."""
    return weights.decay_rate * F.softplus(a.float() + weights.dt_bias), b.float().sigmoid()


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """[tokens, H, ...] -> [H, chunks, chunk, ...], zero-padded: beta 0 writes nothing, log decay 0 forgets nothing."""
    tokens = x.shape[0]
    padding = -tokens % chunk
    if padding:
        x = torch.cat((x, x.new_zeros(padding, *x.shape[1:])))
    return x.transpose(0, 1).reshape(x.shape[1], -1, chunk, *x.shape[2:])


def _finish(out: Tensor, z: Tensor, weights: GdnWeights) -> Tensor:
    """[tokens, Hv, Dv] fp32 and z [tokens, Hv·Dv] -> gated norm, [tokens, Hv·Dv] in z's dtype."""
    gate = z.reshape(-1, weights.value_heads, weights.value_dim)
    return gated_rms_norm(out.to(z.dtype), gate, weights.norm, weights.eps).flatten(1)
