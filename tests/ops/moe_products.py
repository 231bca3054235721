"""What the tests of ops/moe share: stacks of random experts, and the chosen ones' products in float64."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.ops.moe import cuda, cuda_prefill
from engine.weights.types import Nvfp4Weight, fuse
from tests.ops.paired_norms import products
from tests.ops.poison import relative_error
from tests.ops.test_moe_grouping import logits_for

SWIGLU_ERROR = 6e-3
"""Gate, up, silu and product are each rounded to bfloat16."""
WEIGHTED_ERROR = 2**-8 + 1e-5
"""One rounding to bfloat16 is at most half a unit in the last place, 2^-8 of the value, and so of any row of values."""
FEED_FORWARD_ERROR = 1.5e-2
"""Of a token's output: beside the roundings above those of each weight, and of `down`'s output."""
TOP_K = 4
ROUTES = ["random", "alike", "one", "ties"]


def stack(count: int, n: int, k: int, generator: torch.Generator) -> list[Nvfp4Weight]:
    """`count` experts and the shared one, [n, k] each, on the generator's device."""

    def one() -> Nvfp4Weight:
        like = {"device": generator.device, "generator": generator}
        packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, **like)
        bits = torch.randint(0, 0x7F, (n, k // 16), dtype=torch.uint8, **like)
        return Nvfp4Weight(packed, bits.view(torch.float8_e4m3fn), torch.rand(n, **like) * 1e-3 + 1e-4)

    return [one() for _ in range(count + 1)]


def pack(weights: list[Nvfp4Weight]) -> cuda.Experts:
    return cuda.pack(fuse(weights), len(weights))


def pack_gate_up(gate: list[Nvfp4Weight], up: list[Nvfp4Weight]) -> cuda.Experts:
    return cuda.pack_gate_up(fuse(gate), fuse(up), len(gate))


def normal(rows: int, k: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, k, device=generator.device, generator=generator).bfloat16()


def routed(kind: str, tokens: int, experts: int, device: torch.device) -> cuda.Routing:
    return cuda.routing(logits_for(kind, tokens, experts, tokens).to(device), TOP_K)


def chosen(how: cuda.Routing, experts: int) -> list[list[int]]:
    """[tokens][slots]: the expert of each pair."""
    return torch.cat((how.ids, torch.full((how.tokens, 1), experts, device=how.ids.device)), 1).tolist()


def matrix(weight: Nvfp4Weight) -> Tensor:
    return weight.dequantize(torch.float32).double()


def swiglu_error(kind: str, tokens: int, experts: int, n: int, k: int, generator: torch.Generator) -> float:
    gate, up = stack(experts, n, k, generator), stack(experts, n, k, generator)
    x, how = normal(tokens, k, generator), routed(kind, tokens, experts, generator.device)
    out = cuda.swiglu(x, pack_gate_up(gate, up), how).view(tokens, how.slots, n)
    gates, ups = [matrix(w) for w in gate], [matrix(w) for w in up]
    rows = [
        torch.stack([F.silu(x[t].double() @ gates[e].T) * (x[t].double() @ ups[e].T) for e in slots])
        for t, slots in enumerate(chosen(how, experts))
    ]
    return relative_error(out, torch.stack(rows))


def planes_of(made: Tensor | cuda.WeightedPairs, tokens: int) -> Tensor:
    """What `cuda.down` leaves as fp32 [slots, tokens, n], each pair's output times its weight."""
    return made if isinstance(made, Tensor) else products(made, tokens)


def weighted_error(kind: str, tokens: int, experts: int, n: int, k: int, generator: torch.Generator) -> float:
    """The largest of a pair's row."""
    down, how = stack(experts, n, k, generator), routed(kind, tokens, experts, generator.device)
    x = normal(tokens * how.slots, k, generator)
    made = cuda.down(x, pack(down), how)
    if tokens > cuda.MAX_ROUTED:
        assert isinstance(made, cuda.WeightedPairs)
        assert made.values.dtype == torch.bfloat16
        assert made.values.shape == (tokens * how.slots, n)
        assert torch.equal(made.weights, how.weights)
    planes = planes_of(made, tokens)
    assert planes.shape == (how.slots, tokens, n)
    matrices, rows = [matrix(w) for w in down], x.double().view(tokens, how.slots, k)
    weights = how.weights.double().view(tokens, how.slots)
    return max(
        relative_error(planes[slot, t], rows[t, slot] @ matrices[e].T * weights[t, slot])
        for t, slots in enumerate(chosen(how, experts))
        for slot, e in enumerate(slots)
    )


def feed_forward_errors(
    kind: str, tokens: int, experts: int, hidden: int, inter: int, generator: torch.Generator, top_k: int = TOP_K
) -> tuple[float, float]:
    """Of `cuda_prefill.feed_forward` and of the launches it stands for: the largest of a token, against float64."""
    gate, up = stack(experts, inter, hidden, generator), stack(experts, inter, hidden, generator)
    down, x = stack(experts, hidden, inter, generator), normal(tokens, hidden, generator)
    logits = logits_for(kind, tokens, experts, tokens)
    how = cuda.routing(logits.to(generator.device), top_k)
    packed = pack_gate_up(gate, up), pack(down)
    ours = cuda_prefill.feed_forward(x, *packed, how)
    assert ours.shape == (1, tokens, hidden)
    assert ours.dtype == torch.float32
    theirs = planes_of(cuda.down(cuda.swiglu(x, packed[0], how), packed[1], how), tokens).sum(0)
    exact = torch.zeros(tokens, hidden, dtype=torch.float64, device=generator.device)
    slots = torch.cat((how.ids, torch.full_like(how.ids[:, :1], experts)), 1)
    for e in range(experts + 1):
        token, slot = (slots == e).nonzero(as_tuple=True)
        rows = x[token].double()
        y = (F.silu(rows @ matrix(gate[e]).T) * (rows @ matrix(up[e]).T)) @ matrix(down[e]).T
        exact.index_add_(0, token, y * how.weights.view(tokens, -1)[token, slot, None].double())
    return largest(ours[0], exact), largest(theirs, exact)


def largest(actual: Tensor, expected: Tensor) -> float:
    """Relative error of the row that is furthest off; NaN stays NaN."""
    return float(((actual.double() - expected).norm(dim=1) / expected.norm(dim=1)).max())
