"""The chunked gated delta rule as two kernels: what each chunk needs, in parallel; then the scan over chunks.

Each in Triton, below, and in CUDA C++, with one contract: chunks.cu for any device, scan.cu for Hopper.

The mathematics is eager.delta_rule's. With A the strictly lower triangle of (beta k)kᵀ ⊙ decay, a chunk of 64 tokens
needs T = (I + A)⁻¹. In Triton it is built from products alone: with D the part of A inside 16 × 16 blocks on the
diagonal and N the rest,

    (I + D)⁻¹ = (I − D)(I + D²)(I + D⁴)(I + D⁸)      since D¹⁶ = 0
    T = (I + M)⁻¹ (I + D)⁻¹,  M = (I + D)⁻¹ N,  (I + M)⁻¹ = (I − M)(I + M²)      since M⁴ = 0

Rejected: the same series over all 64 rows at once, whose powers grow until fp32 has no digits left for equal keys.

The scan then needs per chunk, for a state S [Dv, Dk] (contract of engine.ops.gdn), row factors left out:

    U = T beta (V − K Sᵀ),  O = Q Sᵀ + (Q Kᵀ ⊙ decay) U,  S ← S + Uᵀ K

Rejected: T (beta K) and T (beta V) made ahead: an eighth more arithmetic, 2.5 times the bytes between the kernels.

Queries, keys and values enter every product as the bfloat16 numbers they are; their norms, gates and decays are factors
of rows, applied in fp32. The fp32 operands S, U, T and the scores enter as two bfloat16 terms each, 16 bits in all
(`_split`), for as many tensor core cycles as TF32 where the other operand is q or k. Rejected: TF32, which drops 13
bits and so shrinks every result: 0.08 % of the state, and 1 % where keys are equal, since there an entry of T and its
neighbour cancel row after row and leave their last kept bit. Rounded to TF32 first, that 1 % stays. T itself, whose
errors every later token would inherit, is computed to fp32: its own products are three of TF32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import library
from engine.ops.gdn import GdnWeights

COMPILED = True
"""Whether chunks.cu, and on Hopper scan.cu, are taken. They passed their tests on an H200 (ops/gdn/README.md)."""
SCAN_ARCHS = ("90a",)
"""Where scan.cu has its products."""
NO_SCAN = (
    "gdn: found a count or a slot on the device, for Triton's kernels; expected COMPILED on sm_90a (gdn/chunked.py); "
    "pass the slot as an int, and live rows alone"
)
CHUNK_TOKENS = 64
HEAD_DIM = 128
VALUE_TILE = 64
"""Value dimensions of the state that one program of the scan keeps: the rows of one wgmma."""


@triton.jit
def _split(x):  # type: ignore[no-untyped-def]
    """fp32 -> two bf16 terms, each rounded to nearest; their sum is x to 2⁻¹⁷ of its size."""
    high = x.to(tl.bfloat16)
    return high, (x - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit(do_not_specialize=["tokens"])  # type: ignore[untyped-decorator]
def _chunk_kernel(  # type: ignore[no-untyped-def]
    mixed, ba, rate, bias, squares, factors, tokens, heads, repeat, key_width, channels, ba_stride, scale,
    CHUNK: tl.constexpr, DIM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One chunk of one value head -> T beta and q kᵀ ⊙ decay as two terms each, and the factors of its rows."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    row, dim = tl.arange(0, CHUNK), tl.arange(0, DIM)
    token = chunk * CHUNK + row
    live = token < tokens
    at = mixed + token[:, None].to(tl.int64) * channels + dim[None, :]
    key_head = head // repeat
    k = tl.load(at + key_width + key_head * DIM, mask=live[:, None], other=0.0)
    wide_k = k.to(tl.float32)
    k_norm = tl.rsqrt(tl.sum(wide_k * wide_k, 1) + 1e-6)
    b = tl.load(ba + token * ba_stride + head, mask=live, other=0.0).to(tl.float32)
    a = tl.load(ba + token * ba_stride + heads + head, mask=live, other=0.0).to(tl.float32) + tl.load(bias + head)
    softplus = tl.where(a > 20.0, a, tl.log(1.0 + tl.exp(tl.minimum(a, 20.0))))
    # Past the end: write nothing, forget nothing.
    beta = tl.where(live, 1.0 / (1.0 + tl.exp(-b)), 0.0)
    total = tl.cumsum(tl.where(live, softplus * tl.load(rate + head), 0.0), 0)
    whole = tl.sum(tl.where(row == CHUNK - 1, total, 0.0), 0)
    grown = tl.exp(total)

    i, j = row[:, None], row[None, :]
    # Masked before the exponential: above the diagonal the exponent is positive and may overflow.
    pair = tl.exp(tl.where(i >= j, total[:, None] - total[None, :], -1e30)) * k_norm[None, :]
    # Scores and factors before the inverse: q and its tile of k are then done with when the inverse needs registers.
    place = (head * tl.num_programs(0) + chunk).to(tl.int64)
    square = squares + place * 4 * CHUNK * CHUNK + i * CHUNK + j
    q = tl.load(at + key_head * DIM, mask=live[:, None], other=0.0)
    wide_q = q.to(tl.float32)
    q_norm = tl.rsqrt(tl.sum(wide_q * wide_q, 1) + 1e-6) * scale
    high, low = _split(tl.dot(q, tl.trans(k)) * pair * q_norm[:, None])
    tl.store(square + 2 * CHUNK * CHUNK, high)
    tl.store(square + 3 * CHUNK * CHUNK, low)
    factor = factors + place * 4 * CHUNK + row
    tl.store(factor, k_norm * grown)
    tl.store(factor + CHUNK, q_norm * grown)
    tl.store(factor + 2 * CHUNK, k_norm * tl.exp(whole - total))
    tl.store(factor + 3 * CHUNK, tl.exp(whole) + tl.zeros_like(total))

    system = tl.where(i > j, tl.dot(k, tl.trans(k)) * pair * (beta * k_norm)[:, None], 0.0)
    inside = tl.where(i // 16 == j // 16, system, 0.0)
    one = tl.where(i == j, 1.0, 0.0)
    power = tl.dot(inside, inside, input_precision=PRECISION)
    inverse = one - inside
    inverse += tl.dot(inverse, power, input_precision=PRECISION)
    power = tl.dot(power, power, input_precision=PRECISION)
    inverse += tl.dot(inverse, power, input_precision=PRECISION)
    power = tl.dot(power, power, input_precision=PRECISION)
    inverse += tl.dot(inverse, power, input_precision=PRECISION)
    across = tl.dot(inverse, system - inside, input_precision=PRECISION)
    outer = one - across
    outer += tl.dot(outer, tl.dot(across, across, input_precision=PRECISION), input_precision=PRECISION)
    inverse = tl.dot(outer, inverse, input_precision=PRECISION)
    high, low = _split(inverse * beta[None, :])
    tl.store(square, high)
    tl.store(square + CHUNK * CHUNK, low)


@triton.jit(do_not_specialize=["tokens", "chunks"])  # type: ignore[untyped-decorator]
def _scan_kernel(  # type: ignore[no-untyped-def]
    mixed, squares, factors, state, out, tokens, chunks, heads, repeat, key_width, channels,
    CHUNK: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """TILE value dimensions of one head over all chunks, the state in registers; `state` is the slot's.

    Values are rows and tokens columns, so that what one product leaves in registers is the next one's left operand.
    """
    head, first = tl.program_id(0), tl.program_id(1) * TILE
    row, dim, value = tl.arange(0, CHUNK), tl.arange(0, DIM), first + tl.arange(0, TILE)
    kept = state + head.to(tl.int64) * DIM * DIM + value[:, None] * DIM + dim[None, :]
    s = tl.load(kept)
    queries = mixed + (head // repeat) * DIM
    values = mixed + 2 * key_width + head * DIM + value[:, None]
    for chunk in range(chunks):
        place = (head * chunks + chunk).to(tl.int64)
        token = chunk * CHUNK + row
        live = token < tokens
        start = token.to(tl.int64) * channels
        at = queries + start[:, None] + dim[None, :]
        q = tl.load(at, mask=live[:, None], other=0.0)
        k = tl.load(at + key_width, mask=live[:, None], other=0.0)
        v = tl.load(values + start[None, :], mask=live[None, :], other=0.0).to(tl.float32)
        square = squares + place * 4 * CHUNK * CHUNK + row[:, None] * CHUNK + row[None, :]
        t_high, t_low = tl.load(square), tl.load(square + CHUNK * CHUNK)
        a_high, a_low = tl.load(square + 2 * CHUNK * CHUNK), tl.load(square + 3 * CHUNK * CHUNK)
        factor = factors + place * 4 * CHUNK + row[None, :]

        high, low = _split(s)
        read = tl.dot(high, tl.trans(k), tl.dot(low, tl.trans(k)))
        o = tl.dot(high, tl.trans(q), tl.dot(low, tl.trans(q))) * tl.load(factor + CHUNK)
        high, low = _split(v - read * tl.load(factor))
        u = tl.dot(high, tl.trans(t_low), tl.dot(low, tl.trans(t_high)))
        u = tl.dot(high, tl.trans(t_high), u)
        high, low = _split(u)
        o = tl.dot(high, tl.trans(a_low), tl.dot(low, tl.trans(a_high), o))
        o = tl.dot(high, tl.trans(a_high), o)
        high, low = _split(u * tl.load(factor + 2 * CHUNK))
        s = tl.dot(high, k, tl.dot(low, k, s * tl.load(factors + (place * 4 + 3) * CHUNK)))
        target = out + (token[None, :].to(tl.int64) * heads + head) * DIM + value[:, None]
        tl.store(target, o.to(out.dtype.element_ty), mask=live[None, :])
    tl.store(kept, s)


def by_scan(device: torch.device, compiled: bool | None = None) -> bool:
    """Whether scan.cu scans, which alone takes a count of tokens and a slot from the device. compiled: as below."""
    return (COMPILED if compiled is None else compiled) and library.arch_of(device) in SCAN_ARCHS


def delta_rule(
    mixed: Tensor,
    ba: Tensor,
    state: Tensor,
    weights: GdnWeights,
    out: Tensor,
    *,
    compiled: bool | None = None,
    slot: Tensor | None = None,
    count: Tensor | None = None,
    value_tile: int = VALUE_TILE,
    chunk_warps: int = 4,
    scan_warps: int = 4,
    scan_stages: int = 2,
) -> None:
    """mixed bf16 [tokens, C] after convolution and silu, ba [tokens, 2·Hv] (b first), state fp32 [Hv, 128, 128].

    Writes out bf16 [tokens, Hv·128] and replaces the state. compiled: None for COMPILED. With slot (int64 [1]) state is
    [slots, Hv, 128, 128]; with count (int32 [1]) only so many tokens are live: of the others nothing is written, and
    the state does not know of them. ValueError for either where `by_scan` is False. The rest are Triton's launch
    parameters.
    """
    scanned = by_scan(mixed.device, compiled)
    if not scanned and (slot is not None or count is not None):
        raise ValueError(NO_SCAN)
    tokens, channels = mixed.shape
    heads, chunks = weights.value_heads, -(-tokens // CHUNK_TOKENS)
    square = (heads, chunks, 4, CHUNK_TOKENS, CHUNK_TOKENS)
    squares = torch.empty(square, dtype=torch.bfloat16, device=mixed.device)
    factors = torch.empty((heads, chunks, 4, CHUNK_TOKENS), dtype=torch.float32, device=mixed.device)
    layout = (heads // weights.key_heads, weights.key_heads * HEAD_DIM, channels)
    sizes = (tokens, heads, *layout, ba.stride(0), HEAD_DIM**-0.5)
    inputs = (mixed, ba, weights.decay_rate, weights.dt_bias)
    if COMPILED if compiled is None else compiled:
        library.call("engine_gdn_chunks", mixed.device, *inputs, squares, factors, count, *sizes, int(scanned))
    else:
        _chunk_kernel[(chunks, heads)](
            *inputs, squares, factors, *sizes,
            CHUNK=CHUNK_TOKENS, DIM=HEAD_DIM, PRECISION="tf32x3", num_warps=chunk_warps, num_stages=1,
        )  # fmt: skip
    if scanned:
        tensors = (mixed, squares, factors, state, out, count, slot)
        library.call("engine_gdn_scan", mixed.device, *tensors, tokens, heads, *layout, state.stride(0))
        return
    _scan_kernel[(heads, HEAD_DIM // value_tile)](
        mixed, squares, factors, state, out, tokens, chunks, heads, *layout,
        CHUNK=CHUNK_TOKENS, DIM=HEAD_DIM, TILE=value_tile, num_warps=scan_warps, num_stages=scan_stages,
    )  # fmt: skip
