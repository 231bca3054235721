"""What `engine bench op moe` and `wide` run: the 35B's router and experts, and the 27B's NVFP4 products of many tokens.

`norm` has the 35B's launch of a norm with its router and the routing from here.

Experts are timed in NVFP4 and in FP8. A case's batch is its tokens: up to 32, from 33 on and, of NVFP4, from 129 on
they are another kernel each (ops/moe/README.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.bench import Case, copies_for
from engine.kernels import library
from engine.ops import norm
from engine.ops.linear.quantize import quantize_per_token
from engine.ops.moe import cuda as moe
from engine.ops.moe import route as route_by_torch
from engine.ops.norm import cuda as norm_cuda
from engine.ops.w4a16 import pack as w4a16_pack
from engine.ops.w4a16 import wide
from engine.weights.types import Fp8Weight, Nvfp4Weight


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a mixture's feed-forward, or of a dense one, whose `experts` are 0."""

    hidden: int
    inter: int
    experts: int = 0
    top_k: int = 0


MIXTURE, DENSE = Sizes(2048, 512, 256, 8), Sizes(5120, 17408)
ROUTER_ERROR, SWIGLU_ERROR, DOWN_ERROR = 4e-3, 6e-3, 4e-3
"""One rounding to bfloat16; four of gate, up, silu and product; one of a pair."""
CHECKED_ROWS, CHECKED_TOKENS = 2048, 4
EPS, PLANES = 1e-6, 2
"""Of a norm, and of the product before it."""


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def random_weight(n: int, k: int, device: torch.device) -> Nvfp4Weight:
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=device)
    scale = torch.randint(1, 0x7F, (n, k // 16), dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
    return Nvfp4Weight(packed, scale, torch.rand(n, device=device) * 1e-4 + 1e-5)


def random_fp8(n: int, k: int, device: torch.device) -> Fp8Weight:
    """Of input that has a scale per token."""
    codes = torch.randint(0, 0x7F, (n, k), dtype=torch.uint8, device=device)
    codes |= torch.randint(0, 2, (n, k), dtype=torch.uint8, device=device) << 7
    return Fp8Weight(codes.view(torch.float8_e4m3fn), torch.rand(n, device=device) * 1e-4 + 1e-5, None)


def seen(x: Tensor, weight: Nvfp4Weight | Fp8Weight) -> Tensor:
    """fp64: what the product is of."""
    if isinstance(weight, Nvfp4Weight):
        return x.double()
    codes, scale = quantize_per_token(x.cpu())  # on CUDA torch's division by 448 may be a last bit off
    return (codes.double() * scale.double()).to(x.device)


def rows_of(weight: Nvfp4Weight | Fp8Weight, first: int, count: int) -> Tensor:
    """fp64 [count, k]."""
    at = slice(first, first + count)
    if isinstance(weight, Fp8Weight):
        return weight.weight[at].double() * weight.row_scale[at].double()[:, None]
    scale = weight.block_scale
    part = Nvfp4Weight(weight.packed[at], scale.view(torch.uint8)[at].view(scale.dtype), weight.row_scale[at])
    return part.dequantize(torch.float32).double()


def swiglu_of(product: Tensor) -> Tensor:
    """[m, n] with eight rows of gate and eight of up in turn -> [m, n / 2]."""
    gate, up = product.view(product.shape[0], -1, 2, 8).unbind(2)
    return (F.silu(gate) * up).flatten(1)


def moe_cases(tokens: int, device: torch.device, sizes: Sizes = MIXTURE) -> Iterator[Case]:
    hidden, inter, count = sizes.hidden, sizes.inter, sizes.experts
    x = torch.randn(tokens, hidden, device=device).bfloat16()
    weight = (torch.randn(count + 1, hidden, device=device) * hidden**-0.5).bfloat16()
    arrived = torch.zeros(1, dtype=torch.int32, device=device)
    if tokens <= moe.MAX_ROUTED:
        logits, how = moe.router(x, weight, sizes.top_k, arrived)
        wrong = _misrouted(logits, how)
        routers = [weight] + [weight.clone() for _ in range(copies_for(weight.nbytes) - 1)]

        def route(i: int) -> object:
            return moe.router(x, routers[i], sizes.top_k, arrived, dependent=True)

        nbytes = x.nbytes + weight.nbytes + logits.nbytes
        found = error(logits, x.double() @ weight.double().T) + wrong
        yield Case("moe router, routing", tokens, nbytes, route, len(routers), found, ROUTER_ERROR)
    else:
        logits = x @ weight.T
        how = moe.routing(logits, sizes.top_k)
        same = logits.nbytes + sum(one.nbytes for one in how.tensors)
        yield Case(
            "moe routing of many",
            tokens,
            same,
            lambda _: moe.routing(logits, sizes.top_k, dependent=True),
            1,
            _misrouted(logits, how),
            ROUTER_ERROR,
        )
    for form, make in (("", random_weight), ("FP8 ", random_fp8)):
        weights = make((count + 1) * 2 * inter, hidden, device), make((count + 1) * hidden, inter, device)
        yield from _expert_cases(form, x, logits, how, weights, sizes)


def routed_norm_cases(tokens: int, device: torch.device, sizes: Sizes = MIXTURE) -> Iterator[Case]:
    """Nothing for more than 32 tokens, whose router and routing are launches of their own."""
    if tokens > moe.MAX_ROUTED:
        return
    hidden = sizes.hidden
    planes = torch.randn(PLANES, tokens, hidden, device=device)
    residual, scale = torch.randn(tokens, hidden, device=device).bfloat16(), torch.rand(hidden, device=device) + 0.5
    router = (torch.randn(sizes.experts + 1, hidden, device=device) * hidden**-0.5).bfloat16()
    arrived = torch.zeros(1, dtype=torch.int32, device=device)
    routers = [router] + [router.clone() for _ in range(copies_for(router.nbytes) - 1)]

    def run(i: int) -> tuple[norm_cuda.Normed, moe.Routing]:
        return norm_cuda.add_norm_route(planes, residual, scale, EPS, routers[i], sizes.top_k, arrived, dependent=True)

    normed, how = run(0)
    total, out, logits = normed.residual, normed.out, normed.small
    assert total is not None
    assert out is not None
    assert logits is not None
    wanted, added = norm.add_rms_norm(planes.sum(0).bfloat16(), residual, scale, EPS)
    products = out.double() @ router.double().T
    weights = torch.cat((route_by_torch(logits[:, :-1], sizes.top_k)[0], logits[:, -1:].float().sigmoid()), 1)
    made = ((total, added), (out, wanted), (logits, products), (how.weights, weights.flatten()))
    found = max(error(ours, theirs) for ours, theirs in made) + _misrouted(logits, how)
    written = (total, out, logits, how.entries[: int(how.count)], *how.tensors[1:])
    nbytes = sum(one.nbytes for one in (planes, residual, scale, router, *written))
    yield Case("norm add + norm + router + routing", tokens, nbytes, run, len(routers), found, ROUTER_ERROR)


def _expert_cases(
    form: str,
    x: Tensor,
    logits: Tensor,
    how: moe.Routing,
    weights: tuple[Nvfp4Weight | Fp8Weight, Nvfp4Weight | Fp8Weight],
    sizes: Sizes,
) -> Iterator[Case]:
    """Both products of the chosen experts. FP8: each with the launch that makes codes of its input."""
    tokens, count = how.tokens, sizes.experts
    packed = moe.pack(weights[0], count + 1), moe.pack(weights[1], count + 1)
    inner = moe.swiglu(x, packed[0], how)
    out = moe.down(inner, packed[1], how)
    errors = _expert_errors(x, inner, out, weights, how, sizes)
    touched = len(set(how.ids.flatten().tolist())) + 1
    for name, index, source, result, limit in (
        ("gate_up + SwiGLU", 0, x, inner, SWIGLU_ERROR),
        ("down", 1, inner, out if isinstance(out, Tensor) else out.values, DOWN_ERROR),
    ):
        held = packed[index]
        read = (held.units.nbytes + held.row_scale.nbytes) // (count + 1) * touched
        # Another routing reads other experts: what is rotated among, in place of copies of all of them.
        hows = [how] + [
            moe.routing(torch.randn_like(logits.float()).bfloat16(), sizes.top_k) for _ in range(copies_for(read) - 1)
        ]
        op: Callable[..., object] = moe.down if index else moe.swiglu

        def run(
            i: int,
            op: Callable[..., object] = op,
            source: Tensor = source,
            held: moe.Stack = held,
            hows: list[moe.Routing] = hows,
        ) -> object:
            return op(source, held, hows[i], dependent=True)

        title = f"moe {form}experts {name}"
        yield Case(title, tokens, read + source.nbytes + result.nbytes, run, len(hows), errors[index], limit)


def _misrouted(logits: Tensor, how: moe.Routing) -> float:
    """Tokens whose experts are not the most probable ones: in bfloat16 equal logits are, the lowest id then."""
    order = logits[:, :-1].float().sort(dim=-1, descending=True, stable=True).indices
    return float((order[:, : how.slots - 1] != how.ids).any(-1).sum())


def _expert_errors(
    x: Tensor,
    inner: Tensor,
    out: Tensor | moe.WeightedPairs,
    weights: tuple[Nvfp4Weight | Fp8Weight, Nvfp4Weight | Fp8Weight],
    how: moe.Routing,
    sizes: Sizes,
) -> tuple[float, float]:
    """Of the first and the last tokens' pairs, gate_up's and down's, the largest."""
    tokens, wide_rows = how.tokens, 2 * sizes.inter
    worst = [0.0, 0.0]
    few = min(CHECKED_TOKENS // 2, tokens)
    for t in {*range(few), *range(tokens - few, tokens)}:
        for slot, expert in enumerate((*how.ids[t].tolist(), sizes.experts)):
            pair = t * how.slots + slot
            expected = swiglu_of(seen(x[t : t + 1], weights[0]) @ rows_of(weights[0], expert * wide_rows, wide_rows).T)
            worst[0] = max(worst[0], error(inner[pair], expected[0]))
            row = seen(inner[pair : pair + 1], weights[1])[0]
            expected = rows_of(weights[1], expert * sizes.hidden, sizes.hidden) @ row
            if isinstance(out, Tensor):
                worst[1] = max(worst[1], error(out[slot, t], expected * how.weights[pair].double()))
            else:
                worst[1] = max(worst[1], error(out.values[pair], expected))
    return worst[0], worst[1]


def wide_cases(tokens: int, device: torch.device, sizes: Sizes = DENSE) -> Iterator[Case]:
    """Products by warpgroups, and the rows that a library multiplies instead: the reason why there are two."""
    for name, n, k in (("gate_up + SwiGLU", 2 * sizes.inter, sizes.hidden), ("down", sizes.hidden, sizes.inter)):
        weight, x = random_weight(n, k, device), torch.randn(tokens, k, device=device).bfloat16()
        units = w4a16_pack.pack(weight.packed, weight.block_scale)
        copies = [units] + [units.clone() for _ in range(copies_for(units.nbytes) - 1)]
        expected = x.double() @ rows_of(weight, 0, min(n, CHECKED_ROWS)).T
        is_swiglu = name != "down"

        def multiply(
            i: int,
            x: Tensor = x,
            copies: list[Tensor] = copies,
            scale: Tensor = weight.row_scale,
            is_swiglu: bool = is_swiglu,
        ) -> Tensor:
            return wide.swiglu(x, copies[i], scale) if is_swiglu else wide.partial(x, copies[i], scale)

        def write_out(
            i: int, n: int = n, k: int = k, copies: list[Tensor] = copies, scale: Tensor = weight.row_scale
        ) -> Tensor:
            rows = torch.empty(n, k, dtype=torch.bfloat16, device=device)
            library.call("engine_w4a16_rows", device, copies[i], scale, rows, n, k)
            return rows

        held = units.nbytes + weight.row_scale.nbytes
        if wide.takes(tokens, n, device):
            out = multiply(0)
            made, wanted = (out, swiglu_of(expected)) if is_swiglu else (out.sum(0), expected)
            found, limit = error(made[:, : wanted.shape[1]], wanted), SWIGLU_ERROR if is_swiglu else 1e-5
            nbytes = held + x.nbytes + out.nbytes
            yield Case(f"w4a16 wide {name}", tokens, nbytes, multiply, len(copies), found, limit)
        rows = write_out(0)
        found = error(rows[:CHECKED_ROWS], rows_of(weight, 0, min(n, CHECKED_ROWS)))
        yield Case(f"w4a16 rows of {name}", tokens, held + rows.nbytes, write_out, len(copies), found, ROUTER_ERROR)
