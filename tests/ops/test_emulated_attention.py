"""The attention launch on a CPU (tests/ops/emulator): norm, rotation, cache write, splits in any order, gate."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from engine.kernels import library
from engine.kernels.library import KernelError
from engine.ops.attention import cuda
from engine.ops.linear.quantize import quantize_per_tensor
from engine.ops.rope.cuda import qk_norm_rope
from tests.ops import attention_rows, emulator

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")

KV = [torch.bfloat16, torch.float8_e4m3fn]
HEADS = [(6, 1), (16, 2), (7, 1), (3, 3)]
"""Six, eight, seven and one query heads per KV head: with more than six, two warps make a second head."""


@pytest.fixture(scope="module")
def kernels():
    """One stand-in for library.call that knows both ops."""
    calls = {
        f"engine_{name}": emulator.build(op)
        for op, name in (("attention", "attention_decode"), ("rope", "qk_norm_rope"))
    }

    def call(name, *arguments):
        calls[name](name, *arguments)

    return call


@pytest.fixture(autouse=True)
def _emulated(monkeypatch, kernels):
    monkeypatch.setattr(library, "call", kernels)


def nan(*shape, device):
    return torch.full(shape, float("nan"), device=device)


def run(rows, splits, **options):
    """One launch over caches of its own -> (output, caches); workspace full of NaN before, counters zero after."""
    space, caches = attention_rows.workspace(rows, splits, nan), rows.caches()
    out = rows.decode(caches, splits, space, **options)
    assert not space.arrived.any()
    return out, caches


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("lengths", [(1,), (16, 17), (150, 5, 400)], ids=str)
@pytest.mark.parametrize("kv", KV, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_against_torch(heads, kv_heads, kv, lengths, splits, generator):
    rows = attention_rows.make(lengths, heads, kv_heads, kv, generator)
    attention_rows.check(rows, *run(rows, splits))


@pytest.mark.parametrize("kv", KV, ids=str)
@pytest.mark.parametrize("m", [1, 2, 7, 32])
def test_every_batch(m, kv, generator):
    """Lengths around the ends of blocks of 5 tokens, which no step of 16 tokens ends with."""
    lengths = torch.randint(1, 40, (m,), generator=generator).tolist()
    rows = attention_rows.make(lengths, 6, 1, kv, generator, block=5)
    attention_rows.check(rows, *run(rows, 2))


@pytest.mark.parametrize("splits", [1, 5])
@pytest.mark.parametrize("kv", KV, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_the_cache_is_what_the_separate_launch_writes(heads, kv_heads, kv, splits, generator):
    """Bit for bit: a token that a decoding step wrote and one that a prefill wrote are the same token."""
    rows = attention_rows.make((129, 1, 300, 128), heads, kv_heads, kv, generator)
    _, caches = run(rows, splits)
    separate = rows.caches()
    rows.separately(separate)
    for made, wanted in zip(caches, separate, strict=True):
        assert torch.equal(made.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("kv", KV, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_a_row_of_padding_is_not_written(heads, kv_heads, kv, generator):
    """Its slot is below 0; what lies before the caches, where it would go, stays as it is."""
    rows = attention_rows.make((1, 7, 30, 2), heads, kv_heads, kv, generator)
    caches = [F.pad(c.view(torch.uint8), (0,) * 6 + (1, 0), value=0x55) for c in rows.caches()]
    wanted, made = ([c.clone() for c in caches] for _ in range(2))
    each, positions, slots = torch.tensor([0, 1, 1, 2, 3, 0]), rows.lengths - 1, torch.tensor([5, 0, -1, 33, 17, -3])
    q, padded_q = (
        qk_norm_rope(rows.qkv[of], *rows.constants, positions[of], where, *(c[1:].view(kv) for c in into), rows.scales)
        for of, where, into in ((torch.arange(4), slots[slots >= 0], wanted), (each, slots, made))
    )
    assert torch.equal(padded_q[[0, 1, 3, 4]], q)
    for ours, theirs, before in zip(made, wanted, caches, strict=True):
        assert torch.equal(ours, theirs)
        written = (ours != before)[1:].flatten(0, 1).flatten(1).any(1)
        assert written.nonzero().flatten().tolist() == [0, 5, 17, 33]
        assert torch.equal(ours[0], before[0])


@pytest.mark.parametrize("kv", KV, ids=str)
def test_the_newest_value_is_the_stored_one(kv, generator):
    """A sequence of one token attends to its value alone, so the output is that value as the cache holds it."""
    rows = attention_rows.make((1, 1), 6, 1, kv, generator)
    out, (_, v_cache) = run(rows, 1)
    stored = v_cache.view(torch.uint8).view(-1, attention_rows.DIM * kv.itemsize)[rows.slots()].view(kv)
    scale = rows.scales[1] if kv == torch.float8_e4m3fn else 1.0
    value = (stored.float() * scale).bfloat16()[:, None]
    assert torch.equal(out.view(2, 6, -1), value * rows.gates().float().sigmoid().bfloat16())


def test_the_order_of_the_splits_changes_nothing(generator):
    """Each launch draws another order of its blocks: no split waits for what another one writes."""
    rows = attention_rows.make((400, 257), 6, 1, torch.bfloat16, generator)
    first, caches = run(rows, 4)
    for _ in range(6):
        again, others = run(rows, 4)
        assert torch.equal(again, first)
        assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(caches, others, strict=True))


def test_a_step_after_a_step(generator):
    """The second token finds the first one's key and value in the cache."""
    rows = attention_rows.make((30, 31), 6, 1, torch.float8_e4m3fn, generator)
    _, (rows.k_cache, rows.v_cache) = run(rows, 2)
    rows.lengths = rows.lengths + 1
    attention_rows.check(rows, *run(rows, 2))


def test_quantised_output_is_the_bf16_output_quantised(generator):
    rows = attention_rows.make((70, 3), 6, 1, torch.float8_e4m3fn, generator)
    input_scale = torch.tensor(0.01)
    codes = run(rows, 2, input_scale=input_scale)[0]
    assert torch.equal(codes.float(), quantize_per_tensor(run(rows, 2)[0], input_scale))


@pytest.mark.parametrize("what", ["q_scale", "k_scale", "cos_sin", "qkv"])
def test_an_error_is_seen(what, generator):
    """The comparison is not blind to one wrong constant: the launch gets one that the reference does not."""
    rows = attention_rows.make((40, 33), 6, 1, torch.bfloat16, generator)
    right = getattr(rows, what).clone()
    getattr(rows, what).copy_(right.roll(1, 0))
    out, caches = run(rows, 2)
    setattr(rows, what, right)
    with pytest.raises(AssertionError):
        attention_rows.check(rows, out, caches)


def test_shapes_outside_the_contract_are_refused(generator):
    rows = attention_rows.make((4,), 8, 1, torch.bfloat16, generator)
    with pytest.raises(KernelError, match="returned CUDA error 1"):
        run(rows, cuda.MAX_SPLITS + 1)
    with pytest.raises(ValueError, match="at most 8 heads per KV head"):
        run(attention_rows.make((4,), 9, 1, torch.bfloat16, generator), 1)
    rows.cos_sin = rows.cos_sin.float()
    with pytest.raises(ValueError, match=r"cos_sin torch\.float32"):
        run(rows, 1)
