"""The chunked gated delta rule as two Triton kernels: what each chunk needs, in parallel; then the scan over chunks.

The mathematics is eager.delta_rule's. With A the strictly lower triangle of (beta k)kᵀ ⊙ decay, a chunk of 64 tokens
needs T = (I + A)⁻¹. It is built from products alone: with D the part of A inside 16 × 16 blocks on the diagonal and N
the rest,

    (I + D)⁻¹ = (I − D)(I + D²)(I + D⁴)(I + D⁸)      since D¹⁶ = 0
    T = (I + M)⁻¹ (I + D)⁻¹,  M = (I + D)⁻¹ N,  (I + M)⁻¹ = (I − M)(I + M²)      since M⁴ = 0

Rejected: the same series over all 64 rows at once, whose powers grow until fp32 has no digits left for equal keys.

Queries, keys and values enter every product as the bfloat16 numbers they are; their norms, gates and decays are factors
of rows, applied in fp32 to the other operand or to the result. So nothing of them is stored twice, and nothing is
rounded but T, the state and what is read from it, to TF32. T itself, whose errors every later token would inherit, is
computed to fp32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.ops.gdn import GdnWeights

CHUNK_TOKENS = 64
HEAD_DIM = 128
VALUE_TILE = 32
"""Value dimensions of the state that one program of the scan keeps."""


@triton.jit(do_not_specialize=["tokens"])  # type: ignore[untyped-decorator]
def _chunk_kernel(  # type: ignore[no-untyped-def]
    mixed, ba, rate, bias, read_k, new_v, scores, factors, tokens, heads, repeat, key_width, channels, ba_stride, scale,
    CHUNK: tl.constexpr, DIM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One chunk of one value head -> T·(beta·decay·k), T·(beta·v), q kᵀ ⊙ decay, and the factors of its rows."""
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

    place = (head * tl.num_programs(0) + chunk).to(tl.int64)
    tile = place * CHUNK * DIM + row[:, None] * DIM + dim[None, :]
    tl.store(read_k + tile, tl.dot(inverse * (beta * grown * k_norm)[None, :], wide_k))
    v = tl.load(at + 2 * key_width + head * DIM, mask=live[:, None], other=0.0).to(tl.float32)
    tl.store(new_v + tile, tl.dot(inverse * beta[None, :], v))
    q = tl.load(at + key_head * DIM, mask=live[:, None], other=0.0)
    wide_q = q.to(tl.float32)
    q_norm = tl.rsqrt(tl.sum(wide_q * wide_q, 1) + 1e-6) * scale
    tl.store(scores + place * CHUNK * CHUNK + i * CHUNK + j, tl.dot(q, tl.trans(k)) * pair * q_norm[:, None])
    tl.store(factors + place * 3 * CHUNK + row, q_norm * grown)
    tl.store(factors + (place * 3 + 1) * CHUNK + row, k_norm * tl.exp(whole - total))
    tl.store(factors + (place * 3 + 2) * CHUNK + row, tl.exp(whole) + tl.zeros_like(total))


@triton.jit(do_not_specialize=["tokens", "chunks"])  # type: ignore[untyped-decorator]
def _scan_kernel(  # type: ignore[no-untyped-def]
    mixed, read_k, new_v, scores, factors, state, out, tokens, chunks, heads, repeat, key_width, channels,
    CHUNK: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """TILE value dimensions of one head over all chunks, the state in registers; `state` is the slot's."""
    head, first = tl.program_id(0), tl.program_id(1) * TILE
    row, dim, column = tl.arange(0, CHUNK), tl.arange(0, DIM), first + tl.arange(0, TILE)
    kept = state + head.to(tl.int64) * DIM * DIM + column[None, :] * DIM + dim[:, None]
    s = tl.load(kept)  # [Dk, TILE]
    queries = mixed + (head // repeat) * DIM
    square = row[:, None] * CHUNK + row[None, :]
    for chunk in range(chunks):
        place = (head * chunks + chunk).to(tl.int64)
        token = chunk * CHUNK + row
        live = (token < tokens)[:, None]
        at = token[:, None].to(tl.int64) * channels + dim[None, :]
        w = tl.load(read_k + place * CHUNK * DIM + row[:, None] * DIM + dim[None, :])
        v = tl.load(new_v + place * CHUNK * DIM + row[:, None] * DIM + column[None, :])
        v -= tl.dot(w, s)
        q = tl.load(queries + at, mask=live, other=0.0).to(tl.float32)
        o = tl.dot(q, s) * tl.load(factors + place * 3 * CHUNK + row)[:, None]
        o += tl.dot(tl.load(scores + place * CHUNK * CHUNK + square), v)
        k = tl.load(queries + key_width + at, mask=live, other=0.0).to(tl.float32)
        v *= tl.load(factors + (place * 3 + 1) * CHUNK + row)[:, None]
        s = s * tl.load(factors + (place * 3 + 2) * CHUNK) + tl.dot(tl.trans(k), v)
        target = out + (token[:, None].to(tl.int64) * heads + head) * DIM + column[None, :]
        tl.store(target, o.to(out.dtype.element_ty), mask=live)
    tl.store(kept, s)


def delta_rule(
    mixed: Tensor,
    ba: Tensor,
    state: Tensor,
    weights: GdnWeights,
    out: Tensor,
    *,
    value_tile: int = VALUE_TILE,
    chunk_warps: int = 4,
    scan_warps: int = 4,
    scan_stages: int = 1,
) -> None:
    """mixed bf16 [tokens, C] after convolution and silu, ba [tokens, 2·Hv] (b first), state fp32 [Hv, 128, 128].

    Writes out [tokens, Hv·128] in its dtype and replaces the state. The rest are launch parameters.
    """
    tokens, channels = mixed.shape
    heads, chunks = weights.value_heads, -(-tokens // CHUNK_TOKENS)
    tile = (heads, chunks, CHUNK_TOKENS, HEAD_DIM)
    read_k, new_v = (torch.empty(tile, dtype=torch.float32, device=mixed.device) for _ in range(2))
    scores = torch.empty((heads, chunks, CHUNK_TOKENS, CHUNK_TOKENS), dtype=torch.float32, device=mixed.device)
    factors = torch.empty((heads, chunks, 3, CHUNK_TOKENS), dtype=torch.float32, device=mixed.device)
    layout = (heads // weights.key_heads, weights.key_heads * HEAD_DIM, channels)
    _chunk_kernel[(chunks, heads)](
        mixed, ba, weights.decay_rate, weights.dt_bias, read_k, new_v, scores, factors,
        tokens, heads, *layout, ba.stride(0), HEAD_DIM**-0.5,
        CHUNK=CHUNK_TOKENS, DIM=HEAD_DIM, PRECISION="tf32x3", num_warps=chunk_warps, num_stages=1,
    )  # fmt: skip
    _scan_kernel[(heads, HEAD_DIM // value_tile)](
        mixed, read_k, new_v, scores, factors, state, out, tokens, chunks, heads, *layout,
        CHUNK=CHUNK_TOKENS, DIM=HEAD_DIM, TILE=value_tile, num_warps=scan_warps, num_stages=scan_stages,
    )  # fmt: skip
