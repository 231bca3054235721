"""Torch stand-ins for the CUDA kernels of a mixture of experts, by the names of engine/ops/moe's C functions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.models import fused_layers
from engine.ops.moe import cuda as moe_cuda
from tests.engine.models.products_on_cpu import product, swiglu
from tests.ops.sorted_routing import routing_by_sort


def grouped(
    name,
    dequantised,
    units,
    row_scale,
    x,
    out,
    entries,
    count,
    pairs,
    weights,
    tokens,
    slots,
    n,
    k,
    output,
    blocks,
    dependent,
):
    assert dependent
    assert blocks > 0
    assert pairs.shape == (tokens * slots,)
    few = tokens <= moe_cuda.MAX_ROUTED
    assert name != ("engine_moe_grouped_many" if few else "engine_moe_grouped")
    assert output in (moe_cuda.Output.SWIGLU, moe_cuda.Output.WEIGHTED if few else moe_cuda.Output.PAIR)
    most = moe_cuda.ENTRY_PAIRS if few else moe_cuda.MANY_PAIRS
    tiles = n // 16
    out.fill_(float("nan"))
    for expert, first, length, _ in entries[: int(count)].tolist():
        assert 1 <= length <= most
        mine = pairs[first : first + length].long()
        weight = dequantised(units[expert * tiles : (expert + 1) * tiles], row_scale[expert * n : (expert + 1) * n])
        assert weight.shape == (n, k)
        by_token = output == moe_cuda.Output.SWIGLU
        y = product(x[mine // slots if by_token else mine], weight).bfloat16()
        match output:
            case moe_cuda.Output.SWIGLU:
                out[mine] = swiglu(y)
            case moe_cuda.Output.WEIGHTED:
                out[mine % slots, mine // slots] = y.float() * weights[mine][:, None]
            case moe_cuda.Output.PAIR:
                out[mine] = y


def router(x, router, logits, entries, count, pairs, weights, ids, arrived, tokens, n, experts, slots, dependent):
    assert dependent
    assert arrived.tolist() == [0]
    assert (tokens, n) == x.shape
    logits.copy_(F.linear(x.float(), router.float()))
    assert logits.shape == (tokens, experts + 1)
    _leave(routing_by_sort(logits, slots - 1), entries, count, pairs, weights, ids)


def route_many(
    logits, entries, count, pairs, weights, ids, positions, ends, chosen, live, tokens, experts, slots, dependent
):
    assert dependent
    assert logits.shape == (tokens, experts + 1)
    assert chosen.shape == (-(-tokens // 32), experts + 1)
    rows = tokens if live is None else int(live)
    made = routing_by_sort(logits[:rows], slots - 1, of_many=True)
    # Rows of padding are in no entry, and what is left of them must not be read; only their places serve as an index.
    pairs.fill_(-1), weights.fill_(float("nan")), ids.fill_(-1)
    _leave(made, entries, count, pairs[: rows * slots], weights[: rows * slots], ids[:rows])
    torch.arange(tokens * slots, out=positions)
    positions[: rows * slots] = fused_layers.asked(made.positions)
    ends.copy_(fused_layers.asked(made.ends))


def spread(x, positions, out, tokens, slots, k, dependent):
    assert dependent
    assert (tokens, k) == x.shape
    out.fill_(float("nan"))
    out[positions.long()] = x.repeat_interleave(slots, 0)


def combine(y, positions, weights, out, tokens, slots, n, dependent):
    assert dependent
    assert (tokens * slots, n) == y.shape
    out.copy_((y[positions.long()].float() * weights[:, None]).view(tokens, slots, n).sum(1))


def _leave(made: moe_cuda.Routing, entries: Tensor, *others: Tensor) -> None:
    """What is beyond the count must not be read."""
    used = int(made.count)
    entries.fill_(-1)
    entries[:used] = made.entries[:used]
    for ours, theirs in zip(others, made.tensors[1:], strict=True):
        ours.copy_(theirs)
