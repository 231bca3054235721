"""What the tests of FP8 experts share: stacks of random ones, and the chosen ones' products of the codes, in float64.

Codes are products' operands, so a reference that quantises for itself rounds the same codes: what is left are sums in
fp32 and the roundings to bfloat16, as of NVFP4 experts (tests/ops/moe_products.py).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.ops.linear.quantize import quantize_per_tensor, quantize_per_token
from engine.ops.moe import cuda
from engine.ops.moe.fp8 import Fp8Experts
from engine.weights.types import Fp8Weight, fuse
from tests.ops.moe_products import chosen, normal, planes_of, routed

STATIC_SCALE = 3.5 / 448
"""Clips some of what a bell curve has."""
SWIGLU_ROW_ERROR = 4.5 * 2**-8
"""Of one pair's row: four roundings to bfloat16, each at most 2^-8 of the value, the gate's 1.5 times that behind silu
(of a negative one more, but its silu is small).
"""


def stack(count: int, n: int, k: int, generator: torch.Generator, input_scale: float | None = None) -> list[Fp8Weight]:
    """`count` experts and the shared one, [n, k] each, every code but NaN, on the generator's device."""

    def one(number: int) -> Fp8Weight:
        like = {"device": generator.device, "generator": generator}
        codes = torch.randint(0, 254, (n, k), dtype=torch.uint8, **like)
        codes += codes >= 0x7F  # past NaN: 0x80 to 0xFE
        scale = (
            None if input_scale is None else torch.tensor(input_scale * 0.9 ** (number % 3), device=generator.device)
        )
        return Fp8Weight(codes.view(torch.float8_e4m3fn), torch.rand(n, **like) * 1e-3 + 1e-4, scale)

    return [one(number) for number in range(count + 1)]


def pack(weights: list[Fp8Weight]) -> Fp8Experts:
    whole = fuse(weights)
    assert isinstance(whole, Fp8Weight)
    return cuda.pack(whole, len(weights))


def pack_gate_up(gate: list[Fp8Weight], up: list[Fp8Weight]) -> Fp8Experts:
    wholes = fuse(gate), fuse(up)
    assert isinstance(wholes[0], Fp8Weight)
    assert isinstance(wholes[1], Fp8Weight)
    return cuda.pack_gate_up(*wholes, len(gate))


def quantised(x: Tensor, given: Tensor | None) -> Tensor:
    """What codes and scales of x stand for, in float64, by the torch path's own rounding.

    On a CPU: on CUDA torch divides by 448 as a product with 1/448, which may be a last bit off, and a code with it.
    """
    if given is not None:
        return (quantize_per_tensor(x.cpu(), given.cpu()).double() * given.cpu().double()).to(x.device)
    codes, scale = quantize_per_token(x.cpu())
    return (codes.double() * scale.double()).to(x.device)


def matrix(weight: Fp8Weight) -> Tensor:
    return weight.weight.double() * weight.row_scale.double()[:, None]


def largest(weights: list[Fp8Weight]) -> Tensor | None:
    scales = [w.input_scale for w in weights if w.input_scale is not None]
    return torch.stack(scales).amax() if scales else None


def worst(made: Tensor, expected: Tensor) -> float:
    """The largest relative error of a pair's row; NaN stays NaN."""
    return float(((made.double() - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


def by_expert(x: Tensor, how: cuda.Routing, matrices: list[Tensor]) -> Tensor:
    """x float64 [tokens · slots, k] -> each pair's row times its expert's matrix, [tokens · slots, n]."""
    experts = torch.tensor(chosen(how, len(matrices) - 1), device=x.device).flatten()
    out = x.new_empty(x.shape[0], matrices[0].shape[0])
    for e, one in enumerate(matrices):
        mine = experts == e
        out[mine] = x[mine] @ one.T
    return out


def swiglu_error(
    kind: str, tokens: int, experts: int, n: int, k: int, generator: torch.Generator, scale: float | None = None
) -> float:
    gate, up = stack(experts, n, k, generator, scale), stack(experts, n, k, generator, scale)
    x, how = normal(tokens, k, generator), routed(kind, tokens, experts, generator.device)
    made = cuda.swiglu(x, pack_gate_up(gate, up), how)
    assert made.dtype == torch.bfloat16
    assert made.shape == (tokens * how.slots, n)
    rows = quantised(x, largest([*gate, *up])).repeat_interleave(how.slots, 0)
    gates, ups = (by_expert(rows, how, [matrix(w) for w in weights]) for weights in (gate, up))
    return worst(made, F.silu(gates) * ups)


def down_error(
    kind: str, tokens: int, experts: int, n: int, k: int, generator: torch.Generator, scale: float | None = None
) -> float:
    down, how = stack(experts, n, k, generator, scale), routed(kind, tokens, experts, generator.device)
    x = normal(tokens * how.slots, k, generator)
    made = cuda.down(x, pack(down), how)
    if tokens > cuda.MAX_ROUTED:
        assert isinstance(made, cuda.WeightedPairs)
        assert made.values.dtype == torch.bfloat16
        assert torch.equal(made.weights, how.weights)
    else:
        assert isinstance(made, Tensor)
        assert made.dtype == torch.float32
    planes = planes_of(made, tokens)
    assert planes.shape == (how.slots, tokens, n)
    expected = by_expert(quantised(x, largest(down)), how, [matrix(w) for w in down]) * how.weights.double()[:, None]
    return worst(planes, expected.view(tokens, how.slots, n).transpose(0, 1))
