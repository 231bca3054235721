"""Mixture of experts: routing, the chosen experts' SwiGLU, and the sum with the shared expert.

Contract, x [tokens, hidden] in the activation dtype:

* `route(logits, top_k)`: router logits [tokens, experts] -> (weights fp32 [tokens, top_k], ids int64 [tokens,
  top_k]). Softmax over all experts in fp32, the k largest, ties to the lowest id, renormalised to sum 1 and kept in
  fp32.
* `experts(x, weights, ids, gate_up, down)`: gate_up[e] [2·inter, hidden] with the gate rows first, down[e] [hidden,
  inter], as operands of ops/linear -> fp32 [tokens, hidden]. The routing weight multiplies the output of `down`.
* `combine(routed, shared, gate)`: routed fp32, shared [tokens, hidden], gate [tokens, 1] raw -> routed +
  sigmoid(gate) · shared, rounded once to shared's dtype.

An expert's output depends on its own tokens alone; experts nobody chose are not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.ops.linear import Operand, linear

DEVICES = frozenset({"cpu", "cuda"})


def silu_mul(gate_up: Tensor) -> Tensor:
    """[tokens, 2·inter], gate columns first -> silu(gate) · up, [tokens, inter]; silu is rounded before it
    multiplies.
    """
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def route(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """See the contract."""
    # topk does not promise an order among equals; a stable sort does.
    probabilities, ids = logits.float().softmax(-1).sort(dim=-1, descending=True, stable=True)
    chosen = probabilities[:, :top_k]
    return chosen / chosen.sum(-1, keepdim=True), ids[:, :top_k]


def experts(x: Tensor, weights: Tensor, ids: Tensor, gate_up: Sequence[Operand], down: Sequence[Operand]) -> Tensor:
    """See the contract. Tokens are sorted by expert, so that each chosen expert is two products."""
    tokens, top_k = ids.shape
    order = ids.flatten().argsort(stable=True)
    counts = ids.flatten().bincount(minlength=len(gate_up)).tolist()
    rows = x[order // top_k]
    out = torch.empty_like(rows)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            end = start + count
            out[start:end] = linear(silu_mul(linear(rows[start:end], gate_up[expert])), down[expert])
            start = end
    unsorted = torch.empty_like(out)
    unsorted[order] = out
    return (unsorted.view(tokens, top_k, -1).float() * weights[:, :, None]).sum(1)


def combine(routed: Tensor, shared: Tensor, gate: Tensor) -> Tensor:
    """See the contract."""
    return (routed + gate.float().sigmoid() * shared.float()).to(shared.dtype)
