"""GDN over a padded run, its count and slot in memory, in the emulator: to the bit the run without the padding."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from engine.kernels import library
from engine.kernels.library import KernelError
from engine.ops.gdn import GdnWeights
from tests.ops import emulator
from tests.ops.padded import NAN, one, same
from tests.ops.test_chunks_emulated import CHUNK, DIM, gates, run, scan

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")

CPU = torch.device("cpu")
SLOTS = 3
RUNS = [(1, 1), (48, 1), (48, 2), (48, 3), (48, 16), (64, 33), (64, 63), (64, 64), (150, 1), (150, 3)]
RUNS += [(150, 63), (150, 64), (150, 65), (150, 128), (150, 129), (150, 150)]
"""Rows, live ones: at the ends of the convolution's tiles of 16 tokens and of chunks of 64, and far from them."""


@pytest.fixture
def ops(monkeypatch):
    """The launches of a run, which run here. Triton is part of a CUDA torch only, and not used: names will do."""
    if importlib.util.find_spec("triton") is None:
        triton, language = ModuleType("triton"), ModuleType("triton.language")
        triton.jit = lambda function=None, **_: function or (lambda function: function)
        triton.language = language
        for name, module in (("triton", triton), ("triton.language", language)):
            monkeypatch.setitem(sys.modules, name, module)
        for name in ("chunked", "cuda_prefill"):
            monkeypatch.setitem(sys.modules, f"engine.ops.gdn.{name}", None)
            del sys.modules[f"engine.ops.gdn.{name}"]  # imported anew, and again when the real Triton may be there
    of = {"engine_gdn_chunks": "chunks", "engine_gdn_scan": "scan"}
    monkeypatch.setattr(
        library, "call", lambda name, *rest: emulator.build("gdn", of.get(name, "prefill"))(name, *rest)
    )
    monkeypatch.setattr(library, "arch_of", lambda _: "90a")
    chunked, prefill = (importlib.import_module(f"engine.ops.gdn.{name}") for name in ("chunked", "cuda_prefill"))
    return SimpleNamespace(chunked=chunked, prefill=prefill.prefill)


def inputs(tokens, count, generator, key_heads=1, heads=2):
    """Rows behind `count` are NaN."""

    def randn(*shape):
        return torch.randn(*shape, generator=generator)

    channels, rate = (2 * key_heads + heads) * DIM, -torch.rand(heads, generator=generator) * 2
    sizes = {"key_heads": key_heads, "value_heads": heads, "key_dim": DIM, "value_dim": DIM}
    weights = GdnWeights(randn(channels, 4) * 0.3, rate, randn(heads), randn(DIM), 1e-6, **sizes)
    qkvz, ba = randn(tokens, channels + heads * DIM).bfloat16(), randn(tokens, 2 * heads).bfloat16()
    qkvz[count:], ba[count:] = NAN, NAN
    return weights, qkvz, ba, randn(SLOTS, channels, 3).bfloat16(), randn(SLOTS, heads, DIM, DIM) * 0.1


def outputs(qkvz, weights, input_scale):
    dtype = torch.bfloat16 if input_scale is None else torch.float8_e4m3fn
    return torch.empty(len(qkvz), weights.value_heads * DIM, dtype=dtype)


@pytest.mark.parametrize(("tokens", "count"), RUNS)
@pytest.mark.usefixtures("poison")
def test_a_padded_run_is_the_run(ops, tokens, count, generator):
    """In a slot whose number is in memory; the other slots are what they were."""
    slot, scale = tokens % SLOTS, None if tokens % 4 else torch.tensor(0.05)
    weights, qkvz, ba, conv, state = inputs(tokens, count, generator)
    before = conv.clone(), state.clone()
    wanted_conv, wanted_state = conv.clone(), state.clone()
    out, wanted = outputs(qkvz, weights, scale), outputs(qkvz[:count], weights, scale)
    ops.prefill(qkvz[:count], ba[:count], wanted_conv, wanted_state, slot, weights, wanted, scale)
    ops.prefill(qkvz, ba, conv, state, one(slot, torch.int64), weights, out, scale, count=one(count))
    same(out[:count], wanted)
    same(conv, wanted_conv)
    same(state, wanted_state)
    assert torch.isfinite(wanted.float()).all()
    others = [other for other in range(SLOTS) if other != slot]
    same(conv[others], before[0][others])
    same(state[others], before[1][others])


@pytest.mark.usefixtures("poison")
def test_either_may_be_a_number_and_the_caches_part_of_larger_ones(ops, generator):
    weights, qkvz, ba, conv, state = inputs(70, 70, generator)
    wanted_conv, wanted_state, wanted = conv.clone(), state.clone(), outputs(qkvz, weights, None)
    ops.prefill(qkvz, ba, wanted_conv, wanted_state, 2, weights, wanted, None)
    for slot, count in ((one(2, torch.int64), None), (2, one(70))):
        wide_conv, wide_state = (torch.full((SLOTS, 2, *x.shape[1:]), NAN, dtype=x.dtype) for x in (conv, state))
        wide_conv[:, 1], wide_state[:, 1] = conv, state
        out = outputs(qkvz, weights, None)
        ops.prefill(qkvz, ba, wide_conv[:, 1], wide_state[:, 1], slot, weights, out, None, count)
        same(out, wanted)
        same(wide_conv[:, 1], wanted_conv)
        same(wide_state[:, 1], wanted_state)
        assert wide_conv[:, 0].isnan().all()
        assert wide_state[:, 0].isnan().all()


@pytest.mark.parametrize(("tokens", "count"), RUNS)
def test_the_convolution_writes_live_rows_alone(tokens, count, generator, poison):
    weights, qkvz, _, conv, _ = inputs(tokens, count, generator)
    channels, call = conv.shape[1], emulator.build("gdn", "prefill")
    made, wanted = poison.empty(2, tokens, channels, dtype=torch.bfloat16)
    sizes = (channels, qkvz.stride(0))
    kept = conv[1].clone()
    call("engine_gdn_conv", CPU, qkvz, weights.conv, kept, wanted, None, None, count, *sizes, 0)
    call("engine_gdn_conv", CPU, qkvz, weights.conv, conv[1], made, one(count), None, tokens, *sizes, 0)
    same(made, wanted)  # of both, the rows behind the live ones are still poison
    same(conv[1], kept)
    assert torch.isfinite(made[:count].float()).all()
    assert made[count:].isnan().all()


@pytest.mark.parametrize(("tokens", "count"), RUNS)
@pytest.mark.parametrize("swizzled", [0, 1])
def test_chunks_and_scan_know_live_rows_alone(tokens, count, swizzled, generator, poison):
    heads, repeat = 2, 2
    mixed = torch.randn(tokens, 4 * DIM, generator=generator).bfloat16()
    ba, rate, bias = gates(tokens, heads, generator)
    mixed[count:], ba[count:] = NAN, NAN
    shape, chunks = (heads, repeat, poison), -(-count // CHUNK)
    wanted = run(mixed[:count], ba[:count], rate, bias, *shape, swizzled)
    made = run(mixed, ba, rate, bias, *shape, swizzled, one(count))
    for ours, theirs in zip(made, wanted, strict=True):
        same(ours[:, :chunks], theirs)
        assert ours[:, chunks:].isnan().all()
    if not swizzled:
        return
    states = torch.randn(1, heads, DIM, DIM, generator=generator).repeat(2, 1, 1, 1)
    out = scan(mixed, *made, states, *shape, count=one(count), slot=one(1, torch.int64))
    same(out[:count], scan(mixed[:count], *wanted, states[0], *shape))
    same(*states)
    assert out[count:].isnan().all()


def test_triton_takes_neither(ops, generator, monkeypatch):
    """Said before anything is written. On another architecture chunks.cu may make the chunks, but Triton scans."""
    weights, qkvz, ba, conv, state = inputs(5, 5, generator)
    before, out = (conv.clone(), state.clone()), outputs(qkvz, weights, None)
    for name, value in (("COMPILED", False), ("SCAN_ARCHS", ("121a",))):
        with monkeypatch.context() as patch:
            patch.setattr(ops.chunked, name, value)
            for slot, count in ((one(1, torch.int64), None), (1, one(5))):
                with pytest.raises(ValueError, match="found a count or a slot on the device, for Triton's kernels"):
                    ops.prefill(qkvz, ba, conv, state, slot, weights, out, None, count)
                given = {"slot": slot if isinstance(slot, torch.Tensor) else None, "count": count}
                with pytest.raises(ValueError, match="found a count or a slot on the device, for Triton's kernels"):
                    ops.chunked.delta_rule(qkvz[:, : conv.shape[1]], ba, state, weights, out, **given)
    same(conv, before[0])
    same(state, before[1])


@pytest.mark.parametrize(
    ("slot", "count", "said"),
    [
        (
            torch.tensor([1], dtype=torch.int32),
            None,
            r"found slot torch\.int32 \[1\] on cpu; expected torch\.int64 \[1\]",
        ),
        (torch.tensor(1), None, r"found slot torch\.int64 \[\] on cpu"),
        (1, torch.tensor([5]), r"found count torch\.int64 \[1\] on cpu; expected torch\.int32 \[1\] on cpu"),
        (1, torch.tensor([5, 5], dtype=torch.int32), r"found count torch\.int32 \[2\] on cpu"),
        (1, torch.empty(1, dtype=torch.int32, device="meta"), r"found count torch\.int32 \[1\] on meta"),
    ],
)
def test_what_is_neither_is_refused(ops, slot, count, said, generator):
    weights, qkvz, ba, conv, state = inputs(5, 5, generator)
    with pytest.raises(ValueError, match=said):
        ops.prefill(qkvz, ba, conv, state, slot, weights, outputs(qkvz, weights, None), None, count)


@pytest.mark.parametrize(
    ("name", "pointers", "sizes", "strides"),
    [
        ("engine_gdn_conv", 5, (5, 6, 6), (17, 0)),
        ("engine_gdn_scan", 6, (5, 1, 1, 128, 384), (DIM * DIM - 2, DIM * DIM + 1)),
    ],
)
def test_slots_that_overlap_or_are_not_aligned_are_refused(name, pointers, sizes, strides):
    call = emulator.build("gdn", "prefill" if "conv" in name else "scan")
    for stride in strides:
        with pytest.raises(KernelError, match="CUDA error 1"):
            call(name, CPU, *[None] * pointers, one(0, torch.int64), *sizes, stride)
