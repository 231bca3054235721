"""The mixture of experts on CUDA: whose pairs lie where, and the products of the chosen experts, NVFP4 or FP8.

A pair is one token at one of its experts, numbered token · slots + slot; the shared expert is expert number `experts`,
chosen by every token at its last slot with the weight sigmoid(gate). Nothing here waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import overload

import torch
from torch import Tensor

from engine.kernels import library
from engine.kernels.skinny import machine
from engine.ops.linear.cuda_quantize import quantize
from engine.ops.moe import fp8
from engine.ops.moe.fp8 import Fp8Experts
from engine.ops.w4a16 import pack as w4a16_pack
from engine.weights.types import Fp8Weight, Nvfp4Weight, WeightError, fused_input_scale

MAX_ROUTED = 32
"""Tokens of one routing launch."""
ENTRY_PAIRS, MANY_PAIRS = 8, 64
"""Of one entry at most. Up to MAX_ROUTED tokens what one mma takes, so that all entries cost the same; beyond, what an
expert's weights are unpacked for once.
"""
MAX_EXPERTS, MAX_SLOTS = 256, 16

WIDE = True
"""Whether wide.cu multiplies for WIDE_TOKENS and more, where it can. It passed its tests on an H200 (README)."""
WIDE_ARCHS, WIDE_ROWS, WIDE_TOKENS = ("90a",), 256, 129
"""Where it has its products, and what an expert's rows must be a multiple of; from how many tokens on it is the faster
one (README)."""

NORM_BLOCKS, ROWS_PER_CHUNK = 128, 4
"""Of a norm's launch with a small product (ops/norm/kernel.cu): all tokens' blocks, and rows taken at a time."""
CHUNK_US = 0.75
"""Measured on an H200: 6 chunks of 5120 columns took a norm of 32 tokens from 3.1 to 7.6 µs."""
L2_BYTES_PER_US = 5.5e6
ROUTER_LAUNCH_US = 6.0
"""What a launch of the router costs beside the norm's. An estimate, not measured."""


class Output(IntEnum):
    """What a product of the chosen experts leaves; the values are grouped.cuh's."""

    SWIGLU = 0
    """bf16 [pairs, n / 2]."""
    WEIGHTED = 1
    """fp32 [slots, tokens, n], rounded to bf16 and then times the pair's weight. Up to 32 tokens."""
    PAIR = 2
    """bf16 [pairs, n]. Beyond."""


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """Which pairs each expert has, sorted by expert and then by token. Written and read on the device."""

    slots: int
    """Experts of a token, the shared one included."""
    entries: Tensor
    """int32 [most entries, 4]: expert, first of its pairs, how many of them (1 to `entry_pairs`), 0.

    Those from `count` on are rubbish.
    """
    count: Tensor
    """int32 [1]: entries in use."""
    pairs: Tensor
    """int32 [tokens · slots]."""
    weights: Tensor
    """fp32 [tokens · slots], by pair."""
    ids: Tensor
    """int32 [tokens, slots - 1]: routed experts, the most probable first."""
    positions: Tensor | None = None
    """int32 [tokens · slots], by pair: its place in `pairs`. Of `routing_of_many` alone, and so is what follows."""
    ends: Tensor | None = None
    """int32 [experts + 1]: of an expert's pairs in `pairs`."""

    @property
    def tokens(self) -> int:
        return self.ids.shape[0]

    @property
    def entry_pairs(self) -> int:
        """Of one entry at most."""
        return ENTRY_PAIRS if self.tokens <= MAX_ROUTED else MANY_PAIRS

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """In the order of the C functions' outputs, those of all routings."""
        return self.entries, self.count, self.pairs, self.weights, self.ids


@dataclass(frozen=True, slots=True, eq=False)
class WeightedPairs:
    """What a token's experts leave of it: the sum over its slots, in their order, of value times weight in fp32."""

    values: Tensor
    """bf16 [tokens · slots, n], by pair."""
    weights: Tensor
    """fp32 [tokens · slots], by pair."""


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """One projection of all experts, the shared one last: NVFP4 matrices [n, k] in units."""

    units: Tensor
    """uint8 [experts · n/16, k/256, 2304]."""
    row_scale: Tensor
    """fp32 [experts · n]."""
    rows: int
    """n."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.units.shape[1] * w4a16_pack.UNIT_K


Stack = Experts | Fp8Experts


@overload
def pack(weight: Nvfp4Weight, experts: int) -> Experts: ...
@overload
def pack(weight: Fp8Weight, experts: int) -> Fp8Experts: ...
@overload
def pack(weight: Nvfp4Weight | Fp8Weight, experts: int) -> Stack: ...
def pack(weight: Nvfp4Weight | Fp8Weight, experts: int) -> Stack:
    """`weight` has one expert's rows after another's, all of one shape.

    Packed as one matrix: expert by expert it took 21,335 kernels a layer of the 35B, together 3,825.
    """
    n = weight.shape[0]
    if n % (experts * w4a16_pack.UNIT_ROWS):
        raise ValueError(f"moe: {n} rows of {experts} experts; expected a multiple of {w4a16_pack.UNIT_ROWS} of each")
    if isinstance(weight, Fp8Weight):
        return fp8.pack(weight, n // experts)
    return Experts(w4a16_pack.pack(weight.packed, weight.block_scale), weight.row_scale, n // experts)


@overload
def pack_gate_up(gate: Nvfp4Weight, up: Nvfp4Weight, experts: int) -> Experts: ...
@overload
def pack_gate_up(gate: Fp8Weight, up: Fp8Weight, experts: int) -> Fp8Experts: ...
@overload
def pack_gate_up(gate: Nvfp4Weight | Fp8Weight, up: Nvfp4Weight | Fp8Weight, experts: int) -> Stack: ...
def pack_gate_up(gate: Nvfp4Weight | Fp8Weight, up: Nvfp4Weight | Fp8Weight, experts: int) -> Stack:
    """Of each expert eight rows of gate and eight of up in turn: what the SwiGLU epilogue expects.

    WeightError where they are not of one kind.
    """
    join = w4a16_pack.interleave
    if isinstance(gate, Fp8Weight) and isinstance(up, Fp8Weight):
        codes, scale = join(gate.weight, up.weight), join(gate.row_scale, up.row_scale)
        return pack(Fp8Weight(codes, scale, fused_input_scale([gate, up])), experts)
    if not (isinstance(gate, Nvfp4Weight) and isinstance(up, Nvfp4Weight)):
        raise WeightError(f"moe: found gate {type(gate).__name__}, up {type(up).__name__}; expected one kind of both")
    rows = join(gate.packed, up.packed)
    return pack(Nvfp4Weight(rows, join(gate.block_scale, up.block_scale), join(gate.row_scale, up.row_scale)), experts)


def unset_routing(tokens: int, top_k: int, device: torch.device) -> Routing:
    """Where one launch writes the routing of up to 32 tokens."""
    slots = top_k + 1
    return Routing(
        slots,
        entries=torch.empty(tokens * slots, 4, dtype=torch.int32, device=device),
        count=torch.empty(1, dtype=torch.int32, device=device),
        pairs=torch.empty(tokens * slots, dtype=torch.int32, device=device),
        weights=torch.empty(tokens * slots, dtype=torch.float32, device=device),
        ids=torch.empty(tokens, top_k, dtype=torch.int32, device=device),
    )


def routing(logits: Tensor, top_k: int, *, dependent: bool = False, count: Tensor | None = None) -> Routing:
    """logits bf16 [tokens, experts + 1], the last the shared expert's gate. One launch up to 32 tokens, else two.

    For logits whose routing no other launch has done already (`norm.cuda.add_norm_route`, `router`). count: of
    `routing_of_many`, for more than 32 tokens; ValueError for fewer.
    """
    tokens, columns = logits.shape
    if logits.dtype != torch.bfloat16 or not logits.is_contiguous() or columns - 1 > MAX_EXPERTS or top_k >= MAX_SLOTS:
        raise ValueError(
            f"moe: found logits {logits.dtype} {list(logits.shape)}, top {top_k}; expected contiguous bfloat16, at "
            f"most {MAX_EXPERTS} experts and {MAX_SLOTS - 1} of them a token"
        )
    if tokens > MAX_ROUTED or count is not None:
        return routing_of_many(logits, top_k, dependent=dependent, count=count)
    made = unset_routing(tokens, top_k, logits.device)
    library.call(
        "engine_moe_route", logits.device, logits, *made.tensors, tokens, columns - 1, made.slots, int(dependent)
    )
    return made


def router(
    x: Tensor, weight: Tensor, top_k: int, arrived: Tensor, *, dependent: bool = False
) -> tuple[Tensor, Routing]:
    """x bf16 [tokens, n], at most 32; weight bf16 [experts + 1, n] -> logits bf16 [tokens, experts + 1], their routing.

    One launch; arrived int32 [1], zero before and after: one launch at a time may use it. ValueError for other shapes.
    """
    tokens, n = x.shape
    experts = weight.shape[0] - 1
    if tokens > MAX_ROUTED or experts > MAX_EXPERTS or top_k >= MAX_SLOTS:
        raise ValueError(
            f"moe: found {tokens} tokens, {experts} experts, top {top_k}; expected at most {MAX_ROUTED}, {MAX_EXPERTS} "
            f"and {MAX_SLOTS - 1}"
        )
    for name, tensor in (("x", x), ("router", weight)):
        if tensor.dtype != torch.bfloat16 or tensor.shape[1] != n or not tensor.is_contiguous():
            raise ValueError(
                f"moe: found {name} {tensor.dtype} {list(tensor.shape)}; expected contiguous bf16 with {n} columns"
            )
    logits = x.new_empty(tokens, experts + 1)
    made = unset_routing(tokens, top_k, x.device)
    sizes = (tokens, n, experts, made.slots)
    library.call("engine_moe_router", x.device, x, weight, logits, *made.tensors, arrived, *sizes, int(dependent))
    return logits, made


def routes_in_norm(tokens: int, planes: int, experts: int, n: int) -> bool:
    """Whether a norm of so many fp32 planes had better multiply by the router, and route, in its own launch.

    There each token's blocks read the planes again, and a chunk of the router's rows after the other.
    """
    blocks = max(NORM_BLOCKS // tokens, 1)
    chunks = -(-(experts + 1) // ROWS_PER_CHUNK)
    repeated = tokens * (min(blocks, chunks) - 1) * planes * 4 * n
    return CHUNK_US * -(-chunks // blocks) + repeated / L2_BYTES_PER_US < ROUTER_LAUNCH_US


def routing_of_many(logits: Tensor, top_k: int, *, dependent: bool = False, count: Tensor | None = None) -> Routing:
    """The same for any number of tokens, in two launches and entries of up to 64 pairs.

    count int32 [1] on the device: of more than 32 tokens only the first so many, at least one, are routed. Of the
    others, whose logits may be anything, no entry, pair or end knows; their weights and ids are not written, and their
    positions are places behind all pairs. ValueError for another count.
    """
    tokens, experts = logits.shape[0], logits.shape[1] - 1
    if count is not None and (
        tokens <= MAX_ROUTED or count.dtype != torch.int32 or count.shape != (1,) or count.device != logits.device
    ):
        raise ValueError(
            f"moe: found a count {count.dtype} {list(count.shape)} on {count.device} of {tokens} tokens on "
            f"{logits.device}; expected int32 [1] there, of more than {MAX_ROUTED}"
        )
    pairs, device = tokens * (top_k + 1), logits.device
    made = Routing(
        top_k + 1,
        entries=torch.empty(min(pairs, experts + 1 + pairs // MANY_PAIRS), 4, dtype=torch.int32, device=device),
        count=torch.empty(1, dtype=torch.int32, device=device),
        pairs=torch.empty(pairs, dtype=torch.int32, device=device),
        weights=torch.empty(pairs, dtype=torch.float32, device=device),
        ids=torch.empty(tokens, top_k, dtype=torch.int32, device=device),
        positions=torch.empty(pairs, dtype=torch.int32, device=device),
        ends=torch.empty(experts + 1, dtype=torch.int32, device=device),
    )
    chosen = torch.empty(-(-tokens // MAX_ROUTED), experts + 1, dtype=torch.int32, device=device)
    sizes = (tokens, experts, made.slots, int(dependent))
    outputs = (*made.tensors, made.positions, made.ends)
    library.call("engine_moe_route_many", device, logits, *outputs, chosen, count, *sizes)
    return made


def swiglu(x: Tensor, experts: Stack, how: Routing, *, dependent: bool = False) -> Tensor:
    """x bf16 [tokens, k] -> silu(gate) · up of each pair, bf16 [tokens · slots, n / 2]."""
    out = x.new_empty(how.tokens * how.slots, experts.rows // 2)
    _run(x, experts, how, out, Output.SWIGLU, dependent)
    return out


def down(x: Tensor, experts: Stack, how: Routing, *, dependent: bool = False) -> Tensor | WeightedPairs:
    """x bf16 [tokens · slots, k] -> the feed-forward's output, as `norm.cuda.add_norm` adds it up to the same bits.

    Up to 32 tokens fp32 [slots, tokens, n]: each pair's output in bf16 times its weight. Beyond, where bytes are what
    counts, the output itself and the weights.
    """
    if how.tokens <= MAX_ROUTED:
        planes = x.new_empty(how.slots, how.tokens, experts.rows, dtype=torch.float32)
        _run(x, experts, how, planes, Output.WEIGHTED, dependent)
        return planes
    pairs = x.new_empty(how.tokens * how.slots, experts.rows)
    _run(x, experts, how, pairs, Output.PAIR, dependent)
    return WeightedPairs(pairs, how.weights)


def _run(x: Tensor, experts: Stack, how: Routing, out: Tensor, output: Output, dependent: bool) -> None:
    n, k = experts.shape
    if x.dtype != torch.bfloat16 or not x.is_contiguous() or x.shape[1] != k:
        raise ValueError(f"moe: found x {x.dtype} {list(x.shape)}; expected contiguous bfloat16 with {k} columns")
    blocks = machine(x.device).multiprocessors
    operands: tuple[Tensor, ...] = (x,)
    if isinstance(experts, Fp8Experts):
        operands = quantize(x, experts.input_scale, dependent=dependent)
        name = "engine_moe_grouped_fp8" if how.tokens <= MAX_ROUTED else "engine_moe_grouped_many_fp8"
    else:
        name = _kernel(how.tokens, n, x.device)
    tensors = (experts.units, experts.row_scale, *operands, out, how.entries, how.count, how.pairs, how.weights)
    sizes = (how.tokens, how.slots, n, k, int(output), blocks, int(dependent))
    library.call(name, x.device, *tensors, *sizes)


def _kernel(tokens: int, rows: int, device: torch.device) -> str:
    """Of NVFP4 experts."""
    if WIDE and tokens >= WIDE_TOKENS and rows % WIDE_ROWS == 0 and library.arch_of(device) in WIDE_ARCHS:
        return "engine_moe_grouped_wide"
    return "engine_moe_grouped" if tokens <= MAX_ROUTED else "engine_moe_grouped_many"
