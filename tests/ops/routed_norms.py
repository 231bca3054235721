"""What the tests of `add_norm_route` share: inputs whose logits are awkward, and the comparison with two launches."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.ops.moe import cuda as moe_cuda
from engine.ops.norm.cuda import add_norm, add_norm_route
from tests.ops.test_moe_grouping import check

EPS = 1e-6
KINDS = ["random", "equal", "ties", "near", "alike", "one", "never", "underflow"]
"""Router rows all equal or few distinct (equal logits), or a unit of bfloat16 apart; tokens alike; one expert far ahead
for every token, or far behind; half of the experts with probability 0."""


def inputs(
    kind: str, m: int, n: int, experts: int, slices: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """planes, residual, scale, router, on the generator's device. Column 0 of every token is large and positive."""
    like = {"device": generator.device, "generator": generator}
    planes = torch.randn(slices, m, n, **like)
    residual = torch.randn(m, n, **like).bfloat16()
    scale = torch.rand(n, **like) + 0.5
    router = torch.randn(experts + 1, n, **like) * 2 / n**0.5
    planes[:, :, 0], residual[:, 0], scale[0], router[:, 0] = 0, 4 * n**0.5, 1, 0
    far = 60 / n**0.5
    match kind:
        case "equal":
            router[:experts] = router[0].clone()
        case "ties":
            router[:experts] = router[torch.randint(0, 5, (experts,), **like)]
        case "near":
            router[:experts] = router[0].clone()
            router[:experts, 0] = torch.randint(0, 3, (experts,), **like) * 2.0**-7 / n**0.5
        case "alike":
            planes[:], residual[:] = planes[:, :1].clone(), residual[:1].clone()
        case "one":
            router[experts // 2, 0] = far
        case "never":
            router[experts // 2, 0] = -far
        case "underflow":
            router[::2, 0] = -4 * far
    return planes, residual, scale, router.bfloat16()


def compare(tensors: tuple[Tensor, Tensor, Tensor, Tensor], top_k: int, arrived: Tensor) -> moe_cuda.Routing:
    """One launch against two, bit for bit, and the routing against its definition."""
    planes, residual, scale, router = tensors
    normed, made = add_norm_route(planes, residual, scale, EPS, router, top_k, arrived)
    apart = add_norm(planes, residual, scale, EPS, small_weight=router)
    assert apart.small is not None
    expected = moe_cuda.routing(apart.small, top_k)
    for ours, theirs in ((normed.residual, apart.residual), (normed.out, apart.out), (normed.small, apart.small)):
        assert torch.equal(ours, theirs)
    same(made, expected)
    check(made, apart.small, top_k)
    assert arrived.tolist() == [0]
    return made


def same(made: moe_cuda.Routing, expected: moe_cuda.Routing) -> None:
    """Entries beyond the count are rubbish in both."""
    count = int(expected.count)
    assert int(made.count) == count
    assert torch.equal(made.entries[:count], expected.entries[:count])
    for ours, theirs in zip(made.tensors[2:], expected.tensors[2:], strict=True):
        assert torch.equal(ours, theirs)
