"""What stands around a library's products, as `engine bench op wide` and `moe` run it: FP8 rows, codes, SwiGLU, pairs.

Of a mixture that is the way of steps larger than vLLM's (ops/moe/cuda_prefill.py); the launches are timed at any size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from engine.bench import Case, copies_for
from engine.bench_tokens import DENSE, MIXTURE, Sizes, error, swiglu_of
from engine.kernels import library
from engine.ops.linear.cuda import SWIGLU_TOKENS
from engine.ops.linear.cuda_quantize import quantize
from engine.ops.linear.quantize import quantize_per_token
from engine.ops.moe import cuda as moe
from engine.ops.w8a8 import pack as w8a8_pack

TO_THE_BIT = 0.5
"""Of a count of elements that differ."""
SWIGLU_ERROR, COMBINE_ERROR = 4e-3, 1e-6
"""Roundings to bfloat16 of silu and of the product; none, of a sum in fp32."""


def fp8_rows_cases(tokens: int, device: torch.device, shapes: Sequence[tuple[str, int, int]]) -> Iterator[Case]:
    """Of (name, n, k): the same bytes in another order, whatever the tokens."""
    for name, n, k in shapes:
        codes = torch.randint(0, 256, (n, k), dtype=torch.uint8, device=device)
        units = w8a8_pack.pack(codes.view(torch.float8_e4m3fn))
        copies = [units] + [units.clone() for _ in range(copies_for(units.nbytes) - 1)]

        def write_out(i: int, n: int = n, k: int = k, copies: list[Tensor] = copies) -> Tensor:
            rows = torch.empty(n, k, dtype=torch.uint8, device=device)
            library.call("engine_w8a8_rows", device, copies[i], rows, n, k)
            return rows

        wrong = _differing(write_out(0), codes)
        yield Case(f"w8a8 rows of {name}", tokens, 2 * units.nbytes, write_out, len(copies), wrong, TO_THE_BIT)


def codes_cases(tokens: int, device: torch.device, sizes: Sizes = DENSE) -> Iterator[Case]:
    """Of a product's input with a scale per token."""
    x = torch.randn(tokens, sizes.hidden, device=device).bfloat16()

    def run(_: int) -> tuple[Tensor, Tensor]:
        return quantize(x, None, dependent=True)

    codes, scales = run(0)
    values, scale = quantize_per_token(x.cpu())  # on CUDA torch's division by 448 may be a last bit off
    wrong = _differing(codes.float().cpu(), values) + _differing(scales.cpu(), scale[:, 0])
    yield Case("x to E4M3 by token", tokens, x.nbytes + codes.nbytes + scales.nbytes, run, 1, wrong, TO_THE_BIT)


def swiglu_cases(tokens: int, device: torch.device, sizes: Sizes = DENSE) -> Iterator[Case]:
    """One launch has SWIGLU_TOKENS at most, as in ops/linear."""
    m = min(tokens, SWIGLU_TOKENS)
    y = torch.randn(m, 2 * sizes.inter, device=device).bfloat16()

    def run(_: int) -> Tensor:
        out = y.new_empty(m, sizes.inter)
        library.call("engine_swiglu", device, y, out, m, sizes.inter)
        return out

    out = run(0)
    found = error(out, swiglu_of(y.double()))
    yield Case("SwiGLU of a product", m, y.nbytes + out.nbytes, run, 1, found, SWIGLU_ERROR)


def pairs_cases(tokens: int, device: torch.device, sizes: Sizes = MIXTURE) -> Iterator[Case]:
    """Nothing up to 32 tokens, whose routing has no positions."""
    if tokens <= moe.MAX_ROUTED:
        return
    hidden, slots = sizes.hidden, sizes.top_k + 1
    how = moe.routing(torch.randn(tokens, sizes.experts + 1, device=device).bfloat16(), sizes.top_k)
    positions, weights = how.positions, how.weights
    assert positions is not None
    x, y = (torch.randn(rows, hidden, device=device).bfloat16() for rows in (tokens, tokens * slots))

    def spread(_: int) -> Tensor:
        by_pair = x.new_empty(tokens * slots, hidden)
        library.call("engine_moe_spread", device, x, positions, by_pair, tokens, slots, hidden, 1)
        return by_pair

    def combine(_: int) -> Tensor:
        out = x.new_empty(tokens, hidden, dtype=torch.float32)
        library.call("engine_moe_combine", device, y, positions, weights, out, tokens, slots, hidden, 1)
        return out

    at = positions.long()
    by_pair, out = spread(0), combine(0)
    wrong = _differing(by_pair[at], x.repeat_interleave(slots, 0))
    nbytes = x.nbytes + positions.nbytes + by_pair.nbytes
    yield Case("moe x by pair", tokens, nbytes, spread, 1, wrong, TO_THE_BIT)
    expected = torch.zeros(tokens, hidden, dtype=torch.float64, device=device)
    for place, weight in zip(at.view(tokens, slots).unbind(1), weights.view(tokens, slots).unbind(1), strict=True):
        expected += y[place].double() * weight[:, None].double()
    nbytes = y.nbytes + positions.nbytes + weights.nbytes + out.nbytes
    yield Case("moe weighted sum of pairs", tokens, nbytes, combine, 1, error(out, expected), COMBINE_ERROR)


def _differing(actual: Tensor, expected: Tensor) -> float:
    return float((actual != expected).sum())
