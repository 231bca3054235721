"""Gated DeltaNet in torch operators: one step, and the chunked form, each vectorised over sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.ops.norm import gated_rms_norm

if TYPE_CHECKING:
    from engine.ops.gdn import GdnWeights

CHUNK_TOKENS = 32
"""Tokens per chunk: the size of the triangular system. On a CPU 32 takes 5 % less time per step than 64, which GPU
kernels use, and pads less; 16 takes as long.
"""

TAPS_KEPT = 3
"""Inputs of the convolution that its state holds."""

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


@dataclass(frozen=True, slots=True)
class Chunks:
    """How runs of tokens, one run after the other, are cut into chunks of one size; made by `chunks`.

    A run's last chunk is padded. Chunks go by their number within the run, and where it is equal the longer run comes
    first: the runs that still have a chunk i are always the first ones, and those chunks lie together.
    """

    ends: tuple[int, ...]
    """Row after the last of each run."""
    slots: Tensor
    """int64 [runs]: state slot of each."""
    slots_by_length: Tensor
    """The same, longest run first."""
    active: tuple[int, ...]
    """By chunk number: how many runs have such a chunk."""
    rows: Tensor
    """int64 [chunks, size]: row of each token; padding repeats one of its run's own rows."""
    mixed_rows: Tensor
    """The same in the convolution's output, which has three more rows per run."""
    padding: Tensor | None
    """bool [chunks, 1, size]: True where there is no token; None without any."""
    places: Tensor
    """int64 [tokens]: where each row went."""


def chunks(lengths: Sequence[int], slots: Sequence[int], device: torch.device) -> Chunks:
    """For runs of these many tokens, each at least one, of the sequences in these slots, all different."""
    size = min(CHUNK_TOKENS, max(lengths))
    ends = tuple(accumulate(lengths))
    order = sorted(range(len(lengths)), key=lambda run: -lengths[run])
    rows: list[int] = []
    mixed_rows: list[int] = []
    padding: list[bool] = []
    places = [0] * ends[-1]
    active = []
    for done in range(0, max(lengths), size):
        members = [run for run in order if lengths[run] > done]
        active.append(len(members))
        for run in members:
            start = ends[run] - lengths[run] + done
            tokens = min(size, lengths[run] - done)
            places[start : start + tokens] = range(len(rows), len(rows) + tokens)
            chunk = [*range(start, start + tokens), *[start] * (size - tokens)]
            rows += chunk
            mixed_rows += [row + run * TAPS_KEPT for row in chunk]
            padding += [False] * tokens + [True] * (size - tokens)
    return Chunks(
        ends=ends,
        slots=torch.tensor(slots, device=device),
        slots_by_length=torch.tensor([slots[run] for run in order], device=device),
        active=tuple(active),
        rows=torch.tensor(rows, device=device).view(-1, size),
        mixed_rows=torch.tensor(mixed_rows, device=device).view(-1, size),
        padding=torch.tensor(padding, device=device).view(-1, 1, size) if any(padding) else None,
        places=torch.tensor(places, device=device),
    )


def prefill(
    qkv: Tensor, z: Tensor, b: Tensor, a: Tensor, conv_state: Tensor, state: Tensor, runs: Chunks, weights: GdnWeights
) -> Tensor:
    """See engine.ops.gdn."""
    count, size = runs.rows.shape
    key_heads, repeat = weights.key_heads, weights.value_heads // weights.key_heads
    mixed = _convolve(qkv, conv_state, runs, weights).index_select(0, runs.mixed_rows.flatten())
    qk, v = mixed.tensor_split((2 * key_heads * weights.key_dim,), -1)
    qk = _wide(qk.reshape(count, size, 2, key_heads, weights.key_dim).permute(0, 3, 2, 1, 4))
    inverse = torch.rsqrt(qk.square().sum(-1, keepdim=True) + L2_EPS)
    inverse[:, :, 0] *= weights.key_dim**-0.5
    qk *= inverse
    v = _wide(v.reshape(count, size, key_heads, repeat, weights.value_dim).permute(0, 2, 3, 1, 4))
    # Padding forgets nothing (log decay 0) and writes nothing (strength 0).
    log_decay, strength = (_chunked(gate, runs).view(v.shape[:-1]) for gate in _gates(b, a, weights))
    current = state.index_select(0, runs.slots_by_length)
    out = delta_rule(qk, v, log_decay, strength, current, runs.active)
    state.index_copy_(0, runs.slots_by_length, current)
    rows = out.flatten(1, 2).transpose(1, 2).to(z.dtype, memory_format=torch.contiguous_format)
    return _finish(rows.flatten(0, 1).index_select(0, runs.places), z, weights)


def delta_rule(
    qk: Tensor, v: Tensor, log_decay: Tensor, strength: Tensor, state: Tensor, active: Sequence[int]
) -> Tensor:
    """The chunked gated delta rule in fp32. `active` and the order of chunks and sequences are as in Chunks.

    qk [chunks, Hk, 2, C, Dk], queries first; v [chunks, Hk, repeat, C, Dv]; both gates [chunks, Hk, repeat, C]; state
    [sequences, Hv, Dv, Dk] is replaced in place -> out [chunks, Hk, repeat, C, Dv].

    Within a chunk the C updates are one unit lower triangular system (the UT transform of Yang et al., "Gated Delta
    Networks"); only chunks are sequential. It is solved for the values once the state is known, not ahead for values
    and keys: that halves the right-hand side, and what queries and keys read of the state is one product per key head.
    """
    key_heads, size = qk.shape[1], qk.shape[3]
    k, both = qk[:, :, 1], qk.flatten(2, 3)
    total = log_decay.cumsum(-1)
    # Above the diagonal the exponent is positive and may overflow. It is cut off rather than made -inf, of which the
    # vectorised exponential takes the slow path; what it gives there meets the zeros of `attended`.
    decay = (total[..., :, None] - total[..., None, :]).clamp_(max=0).exp_()
    attended, system = (both @ k.mT).view(-1, key_heads, 2, 1, size, size).unbind(2)
    within = attended.tril() * decay
    # Only the strict lower triangle of the system is read (unitriangular), so its diagonal may hold anything.
    system = decay.mul_(system).mul_(strength[..., None])
    grown = total.exp()
    fading = (total[..., -1:] - total).exp_()[..., None, :]
    right = v * strength[..., None]
    out, correction = torch.empty_like(v), torch.empty_like(v)
    first = 0
    for count in active:
        chunk = slice(first, first + count)
        first += count
        known = state[:count].view(count, key_heads, -1, state.shape[-1])
        read = (both[chunk] @ known.mT).view(count, key_heads, 2, size, v.shape[2], v.shape[4])
        queried, predicted = read.transpose(3, 4).unbind(2)
        right[chunk].addcmul_(strength[chunk, ..., None] * grown[chunk, ..., None], predicted, value=-1)
        solved = torch.linalg.solve_triangular(
            system[chunk], right[chunk], upper=False, unitriangular=True, out=correction[chunk]
        )
        torch.addcmul(within[chunk] @ solved, grown[chunk, ..., None], queried, out=out[chunk])
        written = torch.mul(solved.mT, fading[chunk], out=solved.new_empty(solved.mT.shape)).flatten(2, 3)
        state[:count] *= grown[chunk, ..., -1].flatten(1)[..., None, None]
        known.flatten(0, 1).baddbmm_(written.flatten(0, 1), k[chunk].flatten(0, 1))
    return out


def _convolve(qkv: Tensor, conv_state: Tensor, runs: Chunks, weights: GdnWeights) -> Tensor:
    """[tokens, C] -> silu of the convolution in qkv's dtype, [tokens + 3·(runs - 1), C]; replaces the slots' states.

    All runs go through as one stream, each behind the three inputs of its state; what the taps make of two neighbours'
    rows are the three rows between their outputs, which nobody reads.
    """
    before = conv_state.index_select(0, runs.slots).transpose(1, 2)
    parts, start = [], 0
    for run, end in enumerate(runs.ends):
        parts += [before[run], qkv[start:end]]
        start = end
    stream = torch.cat(parts)
    last = [stream[end + run * TAPS_KEPT :][:TAPS_KEPT] for run, end in enumerate(runs.ends)]
    conv_state.index_copy_(0, runs.slots, torch.stack(last).transpose(1, 2))
    stream, length = stream.float(), stream.shape[0] - TAPS_KEPT
    # Taps as rows: a column's stride costs torch's product its vector form, and five times the time.
    first, *others = weights.conv.T.contiguous()
    mixed = stream[:length] * first
    for tap, weight in enumerate(others, 1):
        mixed.addcmul_(stream[tap : tap + length], weight)
    return F.silu(mixed, inplace=True).to(qkv.dtype)


def _chunked(gate: Tensor, runs: Chunks) -> Tensor:
    """[tokens, Hv] -> [chunks, Hv, size], 0 where there is padding."""
    count, size = runs.rows.shape
    chunked = gate.index_select(0, runs.rows.flatten()).view(count, size, -1).transpose(1, 2).contiguous()
    return chunked if runs.padding is None else chunked.masked_fill_(runs.padding, 0)


def _wide(x: Tensor) -> Tensor:
    """fp32, contiguous in the order of its dimensions."""
    return x.to(torch.float32, memory_format=torch.contiguous_format, copy=True)


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


def _finish(out: Tensor, z: Tensor, weights: GdnWeights) -> Tensor:
    """[tokens, Hv, Dv] fp32 and z [tokens, Hv·Dv] -> gated norm, [tokens, Hv·Dv] in z's dtype."""
    gate = z.reshape(-1, weights.value_heads, weights.value_dim)
    return gated_rms_norm(out.to(z.dtype), gate, weights.norm, weights.eps).flatten(1)
