"""Mixture of experts, one token and one chosen expert at a time, in fp32."""

from __future__ import annotations

import torch
from torch import Tensor


def route(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """[tokens, experts] -> (fp32 weights, ids), both [tokens, top_k]."""
    probabilities = logits.float().softmax(-1)
    ids = torch.tensor([sorted(range(len(p)), key=lambda e: (-p[e], e))[:top_k] for p in probabilities.tolist()])
    chosen = probabilities.gather(1, ids)
    return chosen / chosen.sum(-1, keepdim=True), ids


def experts(x: Tensor, weights: Tensor, ids: Tensor, gate_up: list[Tensor], down: list[Tensor]) -> Tensor:
    """Dequantised matrices gate_up[e] [2·inter, hidden], down[e] [hidden, inter] -> fp32 [tokens, hidden]."""
    out = torch.zeros(x.shape, dtype=torch.float32)
    for token in range(x.shape[0]):
        for weight, expert in zip(weights[token], ids[token].tolist(), strict=True):
            gate, up = (gate_up[expert].float() @ x[token].float()).chunk(2)
            out[token] += weight * (down[expert].float() @ (gate / (1 + torch.exp(-gate)) * up))
    return out


def combine(routed: Tensor, shared: Tensor, gate: Tensor) -> Tensor:
    return routed + shared.float() / (1 + torch.exp(-gate.float()))
