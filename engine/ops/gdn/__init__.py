"""Gated DeltaNet between its projections: causal convolution, gates, delta rule, gated norm.

Contract. Per layer, C = conv_dim = 2·Hk·Dk + Hv·Dv channels ordered q | k | v:

* `conv_state` [slots, C, 3], activation dtype: the last three raw (before convolution and activation) inputs,
  oldest first.
* `state` fp32 [slots, Hv, Dv, Dk] (K contiguous).
* `decode(qkv, z, b, a, conv_state, state, slots, weights)`: one token of each sequence; qkv [sequences, C], z
  [sequences, Hv·Dv], b and a [sequences, Hv], slots int64 [sequences], all different -> [sequences, Hv·Dv] in qkv's
  dtype.
* `prefill(qkv, z, b, a, conv_state, state, slot, weights)`: a run of tokens of one sequence, in order; slot an int.
* `prefill_runs(qkv, z, b, a, conv_state, state, runs, weights)`: the same for several sequences at once, whose runs
  follow one another. `chunks(lengths, slots, device)` makes `runs`, once per step.

All read the slot's state and write it back in place; nothing else is touched. A slot must be zeroed before its first
token. The value head j reads query/key head j // (Hv / Hk). Roundings: the convolution's output and the rule's output
to the activation dtype, the gated norm's result once; the rest, gates included, is fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.ops.gdn import eager
from engine.ops.gdn.eager import Chunks, chunks

__all__ = ["DEVICES", "Chunks", "GdnWeights", "chunks", "decode", "prefill", "prefill_runs"]

DEVICES = frozenset({"cpu", "cuda"})


@dataclass(frozen=True, slots=True)
class GdnWeights:
    """What one layer needs between in_proj and out_proj, all fp32, made once at load."""

    conv: Tensor
    """[C, 4]; tap 3 multiplies the current token."""
    decay_rate: Tensor
    """-exp(A_log) [Hv]."""
    dt_bias: Tensor
    """[Hv]."""
    norm: Tensor
    """[Dv], plain (not zero-centred)."""
    eps: float
    key_heads: int
    value_heads: int
    key_dim: int
    """Dk, per head."""
    value_dim: int
    """Dv, per head."""


def decode(
    qkv: Tensor, z: Tensor, b: Tensor, a: Tensor, conv_state: Tensor, state: Tensor, slots: Tensor, weights: GdnWeights
) -> Tensor:
    """One token per sequence -> [sequences, Hv·Dv]."""
    return eager.decode(qkv, z, b, a, conv_state, state, slots, weights)


def prefill(
    qkv: Tensor, z: Tensor, b: Tensor, a: Tensor, conv_state: Tensor, state: Tensor, slot: int, weights: GdnWeights
) -> Tensor:
    """A run of tokens of one sequence -> [tokens, Hv·Dv]."""
    runs = chunks([qkv.shape[0]], [slot], qkv.device)
    return prefill_runs(qkv, z, b, a, conv_state, state, runs, weights)


def prefill_runs(
    qkv: Tensor, z: Tensor, b: Tensor, a: Tensor, conv_state: Tensor, state: Tensor, runs: Chunks, weights: GdnWeights
) -> Tensor:
    """Runs of tokens of several sequences, one after the other -> [tokens, Hv·Dv]."""
    return eager.prefill(qkv, z, b, a, conv_state, state, runs, weights)
