"""From logits to ids: argmax, and a draw from the truncated distribution.

Contract, logits fp32 [rows, vocab_size], already penalised and masked (-inf):

* `argmax(logits)` -> int64 [rows]; the lowest id of a tie.
* `draw(logits, uniform, temperature, top_k, top_p, min_p)` -> int64 [rows]. Everything after the logits is [rows];
  `uniform` is float64 in [0, 1). Temperature first, then min_p, then top_k, then top_p, as vLLM orders them; then
  the inverse of the cumulative distribution in id order at `uniform`. A row's result depends on its own inputs alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

DEVICES = frozenset({"cpu", "cuda"})


def argmax(logits: Tensor) -> Tensor:
    """fp32 [rows, vocab_size] -> int64 [rows]; torch's argmax returns the first of equal maxima."""
    return logits.argmax(-1)


def draw(logits: Tensor, uniform: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """One id per row. temperature > 0; top_k 0 and top_p 1 and min_p 0 leave the distribution whole."""
    scaled = logits / temperature[:, None]
    probabilities = scaled.softmax(-1)
    if bool((min_p > 0).any()):
        low = probabilities < min_p[:, None] * probabilities.amax(-1, keepdim=True)
        probabilities = probabilities.masked_fill(low, 0.0)
    if bool((top_k > 0).any()) or bool((top_p < 1).any()):
        probabilities = _truncate(probabilities, top_k, top_p)
    cumulative = probabilities.double().cumsum(-1)
    # right=True: the first id whose cumulative mass exceeds the target, so an id of zero probability is never drawn.
    target = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def _truncate(probabilities: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Zero what is outside the k most probable, then outside the smallest set that reaches top_p of what remains."""
    ordered, index = probabilities.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ordered.shape[-1], device=ordered.device)
    limit = torch.where(top_k > 0, top_k, ordered.shape[-1])
    ordered = ordered.masked_fill(rank >= limit[:, None], 0.0)
    mass = ordered.double().cumsum(-1)
    before = mass - ordered
    ordered = ordered.masked_fill((before >= top_p[:, None] * mass[:, -1:]) & (rank > 0), 0.0)
    return torch.zeros_like(probabilities).scatter_(-1, index, ordered)
