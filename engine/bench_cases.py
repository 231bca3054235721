"""What `engine bench op` runs: the 27B's shapes, random inputs, each kernel's check against its torch reference.

A mixture's are the 35B's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from engine.bench import Case, copies_for
from engine.bench_library import codes_cases, fp8_rows_cases, pairs_cases, swiglu_cases
from engine.bench_prefill import prefill_cases
from engine.bench_tokens import moe_cases, routed_norm_cases, wide_cases
from engine.kernels.skinny import Epilogue
from engine.ops import attention, gdn, norm, rope, sample
from engine.ops.attention import cuda as attention_cuda
from engine.ops.gdn import cuda as gdn_cuda
from engine.ops.norm import cuda as norm_cuda
from engine.ops.rope import cuda as rope_cuda
from engine.ops.sample import cuda as sample_cuda
from engine.ops.w4a16 import cuda as w4a16
from engine.ops.w4a16 import pack as w4a16_pack
from engine.ops.w8a8 import cuda as w8a8
from engine.ops.w8a8 import pack as w8a8_pack
from engine.weights.types import Nvfp4Weight

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 5120, 24, 4, 256
KEY_HEADS, VALUE_HEADS, GDN_DIM = 16, 48, 128
CONTEXT, BLOCK_TOKENS = 1152, 16
EPS = 1e-6
CHECKED_ROWS = 2048
"""Output rows that a product's check dequantises: all of lm_head would not fit in float64."""

W4A16_SHAPES = (
    ("gate_up + SwiGLU", 34816, 5120, Epilogue.SWIGLU),
    ("down", 5120, 17408, Epilogue.PARTIAL),
    ("lm_head + argmax", 248320, 5120, Epilogue.ARGMAX),
)
W8A8_SHAPES = (
    ("in_proj_qkvz", 16384, 5120, Epilogue.BF16),
    ("qkv_proj", 14336, 5120, Epilogue.BF16),
    ("out_proj, o_proj", 5120, 6144, Epilogue.PARTIAL),
)


def _error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def _sum(planes: Tensor) -> Tensor:
    return planes.sum(0) if planes.dim() == 3 else planes


def _rotating(
    op: Callable[[Tensor, Tensor, Tensor, bool], Tensor], x: Tensor, copies: list[Tensor], row_scale: Tensor
) -> Callable[[int], object]:
    return lambda i: op(x, copies[i], row_scale, True)


def _w4a16(m: int, device: torch.device) -> Iterator[Case]:
    for name, n, k, epilogue in W4A16_SHAPES:
        packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=device)
        scale = torch.randint(1, 0x7F, (n, k // 16), dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
        row_scale = torch.rand(n, device=device) * 1e-4 + 1e-5
        x = torch.randn(m, k, device=device).bfloat16()
        units = w4a16_pack.pack(packed, scale)
        ids, space = torch.empty(m, dtype=torch.int64, device=device), sample_cuda.workspace(m, device)

        def argmax(
            x: Tensor,
            weight: Tensor,
            scale: Tensor,
            dependent: bool = False,
            ids: Tensor = ids,
            space: sample_cuda.ArgmaxWorkspace = space,
        ) -> Tensor:
            return w4a16.w4a16_argmax(x, weight, scale, ids, space, dependent=dependent)

        op: dict[Epilogue, Callable[[Tensor, Tensor, Tensor, bool], Tensor]] = {
            Epilogue.SWIGLU: w4a16.w4a16_swiglu,
            Epilogue.PARTIAL: w4a16.w4a16_partial,
            Epilogue.ARGMAX: argmax,
        }
        out = _sum(op[epilogue](x, units, row_scale, False))
        rows = slice(0, min(n, CHECKED_ROWS))
        weight = Nvfp4Weight(packed[rows], scale.view(torch.uint8)[rows].view(scale.dtype), row_scale[rows])
        expected = x.double() @ weight.dequantize(torch.float32).double().T
        if epilogue is Epilogue.SWIGLU:
            gate, up = expected.view(m, -1, 2, 8).unbind(2)
            expected = (torch.nn.functional.silu(gate) * up).flatten(1)
        wrong = float((ids != sample.argmax(out.float())).sum()) if epilogue is Epilogue.ARGMAX else 0.0
        copies = [units] + [units.clone() for _ in range(copies_for(units.nbytes) - 1)]
        yield Case(
            f"w4a16 {name}",
            m,
            units.nbytes + row_scale.nbytes + x.nbytes + out.nbytes,
            _rotating(op[epilogue], x, copies, row_scale),
            len(copies),
            _error(out[:, : expected.shape[1]], expected) + wrong,
            6e-3 if epilogue is not Epilogue.PARTIAL else 1e-5,
        )


def _w8a8(m: int, device: torch.device) -> Iterator[Case]:
    for name, n, k, epilogue in W8A8_SHAPES:
        weight, x = (torch.randn(r, k, device=device).to(torch.float8_e4m3fn) for r in (n, m))
        row_scale = torch.rand(n, device=device) + 0.1
        units = w8a8_pack.pack(weight)
        op = w8a8.w8a8_partial if epilogue is Epilogue.PARTIAL else w8a8.w8a8
        out = _sum(op(x, units, row_scale))
        rows = slice(0, CHECKED_ROWS)
        expected = x.double() @ weight.view(torch.uint8)[rows].view(weight.dtype).double().T * row_scale[rows]
        copies = [units] + [units.clone() for _ in range(copies_for(units.nbytes) - 1)]
        yield Case(
            f"w8a8 {name}",
            m,
            units.nbytes + row_scale.nbytes + x.nbytes + out.nbytes,
            _rotating(op, x, copies, row_scale),
            len(copies),
            _error(out[:, :CHECKED_ROWS], expected),
            3e-3 if epilogue is not Epilogue.PARTIAL else 1e-5,
        )


def _norm(m: int, device: torch.device) -> Iterator[Case]:
    planes = torch.randn(2, m, HIDDEN, device=device)
    residual = torch.randn(m, HIDDEN, device=device).bfloat16()
    scale, input_scale = torch.rand(HIDDEN, device=device) + 0.5, torch.tensor(0.02, device=device)
    small = torch.randn(2 * VALUE_HEADS, HIDDEN, device=device).bfloat16()
    expected, _ = norm.add_rms_norm(planes.sum(0).bfloat16(), residual, scale, EPS)
    io = planes.nbytes + 2 * residual.nbytes + scale.nbytes
    for name, weight in (("add + norm + E4M3", None), ("add + norm + E4M3 + b, a", small)):

        def run(_: int, weight: Tensor | None = weight) -> norm_cuda.Normed:
            return norm_cuda.add_norm(
                planes, residual, scale, EPS, input_scale=input_scale, small_weight=weight, dependent=True
            )

        got = run(0)
        assert got.out is not None
        error = _error(got.out, expected)
        if weight is not None and got.small is not None:
            error = max(error, _error(got.small, got.out.double() @ weight.double().T))
        nbytes = io + residual.nbytes * 3 // 2 + (0 if weight is None else weight.nbytes)
        yield Case(f"norm {name}", m, nbytes, run, 1, error, 3e-3)
    yield from routed_norm_cases(m, device)


def _gdn(m: int, device: torch.device) -> Iterator[Case]:
    channels = (2 * KEY_HEADS + VALUE_HEADS) * GDN_DIM
    weights = gdn.GdnWeights(
        conv=torch.rand(channels, 4, device=device) - 0.5,
        decay_rate=-torch.rand(VALUE_HEADS, device=device) * 4,
        dt_bias=torch.rand(VALUE_HEADS, device=device),
        norm=torch.rand(GDN_DIM, device=device) + 0.5,
        eps=EPS,
        key_heads=KEY_HEADS,
        value_heads=VALUE_HEADS,
        key_dim=GDN_DIM,
        value_dim=GDN_DIM,
    )
    width = VALUE_HEADS * GDN_DIM
    qkvz = torch.randn(m, channels + width, device=device).bfloat16()
    ba = torch.randn(m, 2 * VALUE_HEADS, device=device).bfloat16()
    slots, readers = torch.arange(m, device=device), torch.zeros(m * KEY_HEADS, dtype=torch.int32, device=device)
    state_bytes = m * VALUE_HEADS * GDN_DIM * GDN_DIM * 4
    copies = copies_for(state_bytes)
    convs = [torch.randn(m, channels, 3, device=device).bfloat16() for _ in range(copies)]
    states = [torch.randn(m, VALUE_HEADS, GDN_DIM, GDN_DIM, device=device) * 0.3 for _ in range(copies)]
    input_scale = torch.tensor(0.02, device=device)
    b, a = ba.chunk(2, -1)
    caches = (convs[0].clone(), states[0].clone())
    expected = gdn.eager.decode(qkvz[:, :-width], qkvz[:, -width:], b, a, *caches, slots, weights)
    got = gdn_cuda.decode(qkvz, ba, convs[0], states[0], slots, weights, readers)
    yield Case(
        "gdn step",
        m,
        2 * state_bytes + 2 * convs[0].nbytes + qkvz.nbytes + ba.nbytes + got.nbytes // 2,
        lambda i: gdn_cuda.decode(
            qkvz, ba, convs[i], states[i], slots, weights, readers, input_scale=input_scale, dependent=True
        ),
        copies,
        max(_error(got, expected), _error(states[0], caches[1])),
        3e-3,
    )


def _attention(m: int, device: torch.device) -> Iterator[Case]:
    """Of one launch: q/k norm, rotation and cache write are in it, on every replay into the same slots."""
    per_sequence = CONTEXT // BLOCK_TOKENS
    order = torch.randperm(m * per_sequence, device=device).view(m, per_sequence)
    lengths = torch.full((m,), CONTEXT, device=device)
    qkv = torch.randn(m, 2 * (HEADS + KV_HEADS) * HEAD_DIM, device=device).bfloat16()
    q_scale, k_scale = (torch.rand(HEAD_DIM, device=device) + 0.5 for _ in "qk")
    table = rope.table(CONTEXT, 64, 1e7, torch.bfloat16).to(device)
    space, input_scale = attention_cuda.workspace(m, KV_HEADS, device), torch.tensor(0.02, device=device)
    shape = (m * per_sequence, BLOCK_TOKENS, KV_HEADS, HEAD_DIM)
    pages = attention.pages(order, lengths, CONTEXT, BLOCK_TOKENS)
    q, gate = qkv[:, : 2 * HEADS * HEAD_DIM].view(m, HEADS, 2, HEAD_DIM).unbind(2)
    q = rope.apply(norm.rms_norm(q, q_scale, EPS), table[lengths - 1])
    for dtype in (torch.float8_e4m3fn, torch.bfloat16):
        copies = copies_for(2 * dtype.itemsize * torch.Size(shape).numel())
        keys, values = ([torch.randn(shape, device=device).to(dtype) for _ in range(copies)] for _ in "kv")

        def run(
            i: int,
            scale: Tensor | None = input_scale,
            keys: list[Tensor] = keys,
            values: list[Tensor] = values,
        ) -> Tensor:
            constants = (q_scale, k_scale, EPS, table)
            where = (order, lengths, (1.0, 1.0), space)
            return attention_cuda.decode(
                qkv, *constants, keys[i], values[i], *where, input_scale=scale, dependent=scale is not None
            )

        got = run(0, None)  # writes the newest token, which the reference reads
        expected = attention.decode(q, keys[0], values[0], pages, 1.0, 1.0) * gate.sigmoid()
        nbytes = 2 * keys[0].nbytes + qkv.nbytes + m * HEADS * HEAD_DIM
        name = f"attention {CONTEXT} tokens, {str(dtype)[6:14]}"
        yield Case(name, m, nbytes, run, copies, _error(got, expected.flatten(1)), 1e-2)


def _rope(m: int, device: torch.device) -> Iterator[Case]:
    qkv = torch.randn(m, 2 * (HEADS + KV_HEADS) * HEAD_DIM, device=device).bfloat16()
    q_scale, k_scale = (torch.rand(HEAD_DIM, device=device) + 0.5 for _ in "qk")
    table = rope.table(4096, 64, 1e7, torch.bfloat16).to(device)
    positions, slots = torch.arange(m, device=device) + 1000, torch.arange(m, device=device)
    k_cache, v_cache = (torch.zeros(2, 16, KV_HEADS, HEAD_DIM, device=device).to(torch.float8_e4m3fn) for _ in "kv")
    q = qkv[:, : 2 * HEADS * HEAD_DIM].view(m, HEADS, 2, HEAD_DIM)[:, :, 0]
    expected = rope.apply(norm.rms_norm(q, q_scale, EPS), table[positions])

    def run(_: int) -> Tensor:
        places = (table, positions, slots, k_cache, v_cache, (1.0, 1.0))
        return rope_cuda.qk_norm_rope(qkv, q_scale, k_scale, EPS, *places, dependent=True)

    got = run(0)
    yield Case("rope qk-norm + KV write", m, qkv.nbytes // 2 + got.nbytes, run, 1, _error(got, expected), 1e-3)


def _sample(m: int, device: torch.device) -> Iterator[Case]:
    logits = torch.randn(m, 248320, device=device).bfloat16()
    ids, space = torch.empty(m, dtype=torch.int64, device=device), sample_cuda.workspace(m, device)
    sample_cuda.argmax(logits, ids, space)
    wrong = float((ids != sample.argmax(logits.float())).sum())
    yield Case(
        "sample argmax",
        m,
        logits.nbytes,
        lambda _: sample_cuda.argmax(logits, ids, space, dependent=True),
        1,
        wrong,
        0.5,
    )


def _moe(tokens: int, device: torch.device) -> Iterator[Case]:
    yield from moe_cases(tokens, device)
    yield from pairs_cases(tokens, device)


def _wide(tokens: int, device: torch.device) -> Iterator[Case]:
    yield from wide_cases(tokens, device)
    yield from fp8_rows_cases(tokens, device, [(name, n, k) for name, n, k, _ in W8A8_SHAPES])
    yield from codes_cases(tokens, device)
    yield from swiglu_cases(tokens, device)


CASES: dict[str, Callable[[int, torch.device], Iterator[Case]]] = {
    "w4a16": _w4a16,
    "w8a8": _w8a8,
    "norm": _norm,
    "gdn": _gdn,
    "attention": _attention,
    "rope": _rope,
    "sample": _sample,
    "moe": _moe,
    "wide": _wide,
    "prefill": prefill_cases,
}
