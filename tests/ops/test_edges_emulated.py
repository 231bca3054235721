"""Prefill's kernels in the emulator touch nothing outside their tensors: behind the last pair, task or token."""

from __future__ import annotations

import ctypes
import signal

import pytest
import torch

from engine.kernels import library
from engine.kernels.skinny import Machine
from engine.ops.moe import cuda as moe_cuda
from tests.ops import emulator
from tests.ops.edges import beside_edge, exit_code
from tests.ops.moe_products import TOP_K, normal, pack, stack
from tests.ops.test_chunks_emulated import CHUNK, DIM, gates
from tests.ops.test_moe_grouping import logits_for
from tests.ops.test_wide_emulated import EXPERTS, HOPPER, PAIR, SWIGLU

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")

END = pytest.mark.parametrize("end", [True, False])


@END
def test_the_edge_is_there(end):
    values = beside_edge(torch.arange(8, dtype=torch.int32), end=end)
    assert values.tolist() == list(range(8))
    outside = values.data_ptr() + (32 if end else -1)
    assert exit_code(lambda: ctypes.string_at(outside, 1)) == -signal.SIGSEGV


@END
@pytest.mark.parametrize("output", [SWIGLU, PAIR])
@pytest.mark.parametrize("blocks", [1, 7])
def test_wide(monkeypatch, generator, output, blocks, end):
    """35 tokens: no entry is full, and most end within a group of eight pairs."""
    tokens, n, k = 35, 256, 256
    monkeypatch.setattr(library, "call", emulator.build("moe", "many"))
    monkeypatch.setattr(moe_cuda, "machine", lambda _: Machine(3, HOPPER))
    how = moe_cuda.routing(logits_for("random", tokens, EXPERTS, tokens), TOP_K)
    experts, pairs = pack(stack(EXPERTS, n, k, generator)), tokens * how.slots
    x = normal(tokens if output == SWIGLU else pairs, k, generator)
    out = torch.empty(pairs, n // 2 if output == SWIGLU else n, dtype=torch.bfloat16)
    entries = how.entries[: int(how.count)]
    tensors = [
        beside_edge(t, end=end)
        for t in (experts.units, experts.row_scale, x, out, entries, how.count, how.pairs, how.weights)
    ]
    call = emulator.build("moe", "wide")
    sizes = (tokens, how.slots, n, k, output, blocks, 1)
    assert exit_code(lambda: call("engine_moe_grouped_wide", x.device, *tensors, *sizes)) == 0


@END
@pytest.mark.parametrize(("tokens", "count"), [(1, None), (65, None), (150, None), (150, 70)])
def test_chunks_and_scan(generator, tokens, count, end):
    """Of a padded run too, with the count and the last slot's number in memory."""
    key_heads, repeat = 2, 2
    heads, chunks = key_heads * repeat, -(-tokens // CHUNK)
    mixed = torch.randn(tokens, (2 * key_heads + heads) * DIM, generator=generator).bfloat16()
    ba, rate, bias = gates(tokens, heads, generator)
    squares = torch.empty(heads, chunks, 4, CHUNK, CHUNK, dtype=torch.bfloat16)
    factors, state = torch.empty(heads, chunks, 4, CHUNK), torch.zeros(heads, DIM, DIM)
    out = torch.empty(tokens, heads * DIM, dtype=torch.bfloat16)
    live = slot = None
    if count is not None:
        live, slot = (
            beside_edge(torch.tensor([n]).to(t), end=end) for n, t in ((count, torch.int32), (1, torch.int64))
        )
        state = torch.zeros(2, heads, DIM, DIM)
    mixed, ba, rate, bias, squares, factors, state, out = (
        beside_edge(t, end=end) for t in (mixed, ba, rate, bias, squares, factors, state, out)
    )
    layout = (heads, repeat, key_heads * DIM, mixed.shape[1])

    def run():
        made = (mixed, ba, rate, bias, squares, factors, live, tokens, *layout, ba.stride(0), DIM**-0.5, 1)
        emulator.build("gdn", "chunks")("engine_gdn_chunks", mixed.device, *made)
        made = (mixed, squares, factors, state, out, live, slot, tokens, *layout, state.stride(0))
        emulator.build("gdn", "scan")("engine_gdn_scan", mixed.device, *made)

    assert exit_code(run) == 0
