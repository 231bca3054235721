"""Routing by torch's sort, for tests without a device and as what the kernels' is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.ops.moe import cuda, route


def routing_by_sort(logits: Tensor, top_k: int, *, of_many: bool = False) -> cuda.Routing:
    """What `cuda.routing` leaves, by torch; of_many: what `cuda.routing_of_many` does, for however few tokens."""
    tokens, experts = logits.shape[0], logits.shape[1] - 1
    slots, device = top_k + 1, logits.device
    most = cuda.ENTRY_PAIRS if tokens <= cuda.MAX_ROUTED and not of_many else cuda.MANY_PAIRS
    weights, ids = route(logits[:, :experts], top_k)
    shared = logits[:, experts:].float().sigmoid()
    by_pair = torch.cat((ids, torch.full((tokens, 1), experts, device=device)), 1).flatten()
    pairs = by_pair.argsort(stable=True)
    counts = torch.zeros(experts + 1, dtype=torch.int64, device=device)
    counts.scatter_add_(0, by_pair, torch.ones_like(by_pair))
    first = counts.cumsum(0) - counts
    # Entry i is the window number i - begins[e] of expert e. Their number is known on the device only, so all are made.
    ends = ((counts + most - 1) // most).cumsum(0)
    entry = torch.arange(min(tokens * slots, experts + 1 + tokens * slots // most), device=device)
    expert = torch.searchsorted(ends, entry, right=True).clamp_max(experts)
    window = entry - (ends[expert] - (counts[expert] + most - 1) // most)
    begin = first[expert] + most * window
    length = (counts[expert] - most * window).clamp(0, most)
    return cuda.Routing(
        slots,
        entries=torch.stack((expert, begin, length, torch.zeros_like(expert)), 1).int(),
        count=ends[-1:].int(),
        pairs=pairs.int(),
        weights=torch.cat((weights, shared), 1).flatten(),
        ids=ids.int(),
        positions=pairs.argsort().int(),
        ends=counts.cumsum(0).int(),
    )
