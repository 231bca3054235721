"""The rope and attention kernels against the torch references: paging, FP8, splits, stale blocks, cache write, gate."""

from __future__ import annotations

import pytest
import torch

from engine.ops import attention, norm, rope
from engine.ops.attention import cuda
from engine.ops.linear.quantize import quantize_per_tensor
from engine.ops.rope.cuda import qk_norm_rope
from tests.ops import attention_rows
from tests.ops.poison import relative_error

pytestmark = pytest.mark.gpu

DIM, BLOCK = 256, 16
HEADS = [(24, 4), (16, 2), (7, 1), (3, 3)]
KV = [torch.bfloat16, torch.float8_e4m3fn]


def make(lengths, heads, kv_heads, kv, generator, **options):
    return attention_rows.make(lengths, heads, kv_heads, kv, generator, device="cuda", **options)


def run(rows, splits, **options):
    """One launch over caches of its own -> (output, caches), counters zero behind it."""
    space = cuda.workspace(rows.m, rows.kv_heads, rows.qkv.device)
    if splits is not None:
        space = attention_rows.workspace(rows, splits)
    caches = rows.caches()
    out = rows.decode(caches, splits, space, **options)
    assert int(space.arrived.abs().sum()) == 0
    return out, caches


@pytest.mark.parametrize("splits", [1, 3, 16, None])
@pytest.mark.parametrize("lengths", [(1,), (1152,), (17, 4000, 128, 129), (5,) * 32], ids=lambda x: f"{len(x)}x{x[0]}")
@pytest.mark.parametrize("kv", KV, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.usefixtures("poison")
def test_decode(heads, kv_heads, kv, lengths, splits, generator):
    rows = make(lengths, heads, kv_heads, kv, generator)
    attention_rows.check(rows, *run(rows, splits))


@pytest.mark.parametrize("kv", KV, ids=str)
@pytest.mark.parametrize("m", range(1, 33))
@pytest.mark.usefixtures("poison")
def test_every_batch(m, kv, generator):
    """Blocks of 5 tokens, which no step of 16 tokens ends with."""
    lengths = torch.randint(1, 700, (m,), generator=generator).tolist()
    rows = make(lengths, 24, 4, kv, generator, block=5)
    attention_rows.check(rows, *run(rows, None))


@pytest.mark.parametrize("splits", [1, 5, None])
@pytest.mark.parametrize("kv", KV, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.usefixtures("poison")
def test_the_cache_is_what_the_separate_launch_writes(heads, kv_heads, kv, splits, generator):
    """Bit for bit: a token that a decoding step wrote and one that a prefill wrote are the same token."""
    rows = make((129, 1, 300, 128, 2000), heads, kv_heads, kv, generator)
    _, caches = run(rows, splits)
    separate = rows.caches()
    rows.separately(separate)
    for made, wanted in zip(caches, separate, strict=True):
        assert torch.equal(made.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("kv", KV, ids=str)
def test_launch_after_launch_is_the_same(kv, generator):
    """Two hundred dependent launches over one cache, replayed by a graph: a race of splits would change one of them."""
    rows = make((1, 40, 700, 1152, 129), 24, 4, kv, generator)
    first, caches = run(rows, None)
    space, mine = cuda.workspace(rows.m, rows.kv_heads, rows.qkv.device), rows.caches()
    graph, outs = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for i in range(20):
            outs.append(rows.decode(mine, None, space, dependent=i > 0))
    for _ in range(10):
        for cache, fresh in zip(mine, rows.caches(), strict=True):
            cache.copy_(fresh)
        for out in outs:
            out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, first) for out in outs)
        assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(mine, caches, strict=True))
    assert int(space.arrived.abs().sum()) == 0


@pytest.mark.usefixtures("poison")
def test_quantised_output_is_the_bf16_output_quantised(generator):
    rows = make((700, 3), 24, 4, torch.float8_e4m3fn, generator)
    input_scale = torch.tensor(0.01, device="cuda")
    codes = run(rows, None, input_scale=input_scale)[0]
    assert torch.equal(codes.float(), quantize_per_tensor(run(rows, None)[0], input_scale))


@pytest.mark.usefixtures("poison")
def test_large_scores_do_not_overflow(generator):
    rows = make((300,), 24, 4, torch.bfloat16, generator)
    rows.q_scale *= 100
    attention_rows.check(rows, *run(rows, None))


def test_more_heads_than_an_operand_are_refused(generator):
    rows = make((4,), 9, 1, torch.bfloat16, generator)
    with pytest.raises(ValueError, match="at most 8 heads per KV head"):
        run(rows, None)


@pytest.mark.parametrize("m", [1, 5, 32])
@pytest.mark.parametrize("kv", KV, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.usefixtures("poison")
def test_qk_norm_rope_and_cache_write(heads, kv_heads, kv, m, generator):
    scales = attention_rows.SCALES
    qkv = torch.randn(m, (2 * heads + 2 * kv_heads) * DIM, generator=generator).bfloat16().cuda()
    q_scale, k_scale = (torch.rand(DIM, generator=generator) + 0.5 for _ in range(2))
    table = rope.table(3000, 64, 1e7, torch.bfloat16)
    positions = torch.randint(0, 3000, (m,), generator=generator)
    slots = torch.randperm(3 * BLOCK, generator=generator)[:m]
    k_cache, v_cache = (torch.randn(3, BLOCK, kv_heads, DIM, generator=generator).to(kv).cuda() for _ in range(2))
    wanted = [k_cache.cpu(), v_cache.cpu()]
    width = heads * DIM
    q_gate, k, v = qkv.cpu().tensor_split((2 * width, 2 * width + kv_heads * DIM), -1)
    q = q_gate.reshape(m, heads, 2, DIM)[:, :, 0]
    expected_q = rope.apply(norm.rms_norm(q, q_scale, 1e-6), table[positions])
    expected_k = rope.apply(norm.rms_norm(k.reshape(m, kv_heads, DIM), k_scale, 1e-6), table[positions])
    attention.write(wanted[0], expected_k, slots, scales[0])
    attention.write(wanted[1], v.reshape(m, kv_heads, DIM), slots, scales[1])
    constants = (q_scale.cuda(), k_scale.cuda(), 1e-6, table.cuda(), positions.cuda(), slots.cuda())
    actual = qk_norm_rope(qkv, *constants, k_cache, v_cache, scales)
    assert relative_error(actual, expected_q) < 1e-3
    assert torch.equal(v_cache.cpu().view(torch.uint8), wanted[1].view(torch.uint8))
    # A norm that rounds the other way once in a while moves an E4M3 code by one: 1/8 of that one value.
    assert relative_error(k_cache.float(), wanted[0].float()) < (1e-3 if kv == torch.bfloat16 else 5e-3)
    others = [s for s in range(3 * BLOCK) if s not in slots.tolist()]
    flat = (k_cache.cpu().view(torch.uint8).view(3 * BLOCK, -1), wanted[0].view(torch.uint8).view(3 * BLOCK, -1))
    assert torch.equal(flat[0][others], flat[1][others])
