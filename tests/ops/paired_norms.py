"""What the tests of `add_norm` with x in bf16 share: the comparison with the same x as fp32 planes."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.ops.moe.cuda import WeightedPairs
from engine.ops.norm.cuda import Normed, add_norm

EPS = 1e-6


def pairs_of(m: int, n: int, slots: int, generator: torch.Generator) -> WeightedPairs:
    """A token's first and last pair are large and cancel, so that the order in which pairs are added shows."""
    like = {"device": generator.device, "generator": generator}
    values = torch.randn(m, slots, n, **like)
    weights = torch.rand(m, slots, **like)
    if slots > 2:
        values[:, -1] = -values[:, 0]
        weights[:, 0] = weights[:, -1] = 3e6
    return WeightedPairs(values.view(m * slots, n).bfloat16(), weights.flatten())


def products(pairs: WeightedPairs, m: int) -> Tensor:
    """fp32 [slots, m, n]: the planes of a decoding step."""
    return (
        (pairs.values.float() * pairs.weights[:, None]).view(m, -1, pairs.values.shape[1]).transpose(0, 1).contiguous()
    )


def both(
    x: WeightedPairs | Tensor, planes: Tensor, generator: torch.Generator, *, quantised: bool
) -> tuple[Normed, Normed]:
    """(of x, of planes), over one residual stream."""
    _, m, n = planes.shape
    like = {"device": generator.device, "generator": generator}
    residual, scale = torch.randn(m, n, **like).bfloat16(), torch.rand(n, **like) + 0.5
    input_scale = torch.tensor(0.02, device=generator.device) if quantised else None
    made, expected = (
        add_norm(given, residual, scale, EPS, want_out=not quantised, input_scale=input_scale) for given in (x, planes)
    )
    return made, expected


def same(made: Normed, expected: Normed) -> bool:
    """To the bit, and all of it finite."""
    assert made.residual is not None
    for leaf in ("residual", "out", "quantised"):
        ours, theirs = getattr(made, leaf), getattr(expected, leaf)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert torch.isfinite(ours.float()).all()
            if not torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8)):
                return False
    return True
