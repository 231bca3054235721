"""kernels/stage.cuh in the emulator: where every lane gives a stage back, to the bit what the shipped kernels leave."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import library
from engine.kernels.build import FOR_SANITIZERS, SHIPPED
from engine.kernels.skinny import Epilogue
from engine.ops.linear import cuda as linear
from engine.ops.linear.quantize import quantize_per_token
from engine.ops.moe import cuda as moe
from tests.ops import emulator, fp8_experts
from tests.ops.moe_products import TOP_K, normal, pack, pack_gate_up, stack
from tests.ops.test_chunks_emulated import CHUNK, DIM, gates, run, scan
from tests.ops.test_moe_grouping import logits_for

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")

CPU = torch.device("cpu")
SWIGLU, PAIR = 0, 2
COLUMNS = 7
"""Of 256: more than any ring has stages, so that each comes round."""


def test_the_scan(generator, poison):
    tokens = 5 * CHUNK + 2
    mixed = torch.randn(tokens, 3 * DIM, generator=generator).bfloat16()
    ba, rate, bias = gates(tokens, 1, generator)
    squares, factors = run(mixed, ba, rate, bias, 1, 1, poison, swizzled=1)
    first = torch.randn(1, DIM, DIM, generator=generator)
    states = [first.clone(), first.clone()]
    outs = [
        scan(mixed, squares, factors, state, 1, 1, poison, variant=variant)
        for state, variant in zip(states, (SHIPPED, FOR_SANITIZERS), strict=True)
    ]
    assert torch.equal(*outs)
    assert torch.equal(*states)


@pytest.mark.parametrize("source", ["many", "wide"])
@pytest.mark.parametrize("output", [SWIGLU, PAIR])
def test_experts(monkeypatch, generator, poison, source, output):
    """many.cu with tasks in which most warps have no tile: those give x back all the same."""
    experts, tokens, k, inter = 4, 40, COLUMNS * 256, 136 if source == "many" else 128
    monkeypatch.setattr(library, "call", emulator.build("moe", "many"))
    how = moe.routing(logits_for("random", tokens, experts, 1), TOP_K)
    weight = pack_gate_up(*(stack(experts, inter, k, generator) for _ in range(2)))
    if output == PAIR:
        weight = pack(stack(experts, 2 * inter, k, generator))
    n, rows = weight.shape[0], tokens * (how.slots if output == PAIR else 1)
    x = normal(rows, k, generator)
    outs = []
    for variant in (SHIPPED, FOR_SANITIZERS):
        out = poison.empty(tokens * how.slots, n // (1 if output == PAIR else 2), dtype=torch.bfloat16)
        tensors = (weight.units, weight.row_scale, x, out, how.entries, how.count, how.pairs, how.weights)
        call = emulator.build("moe", source, variant=variant)
        call(f"engine_moe_grouped_{source}", CPU, *tensors, how.tokens, how.slots, n, k, output, 3, 1)
        outs.append(out)
    assert torch.equal(*outs)


@pytest.mark.parametrize("output", [SWIGLU, PAIR])
def test_fp8_experts(monkeypatch, generator, poison, output):
    experts, tokens, k, inter = 4, 40, 2 * COLUMNS * 128, 136
    monkeypatch.setattr(library, "call", emulator.build("moe", "many"))
    how = moe.routing(logits_for("random", tokens, experts, 1), TOP_K)
    weight = fp8_experts.pack_gate_up(*(fp8_experts.stack(experts, inter, k, generator) for _ in range(2)))
    if output == PAIR:
        weight = fp8_experts.pack(fp8_experts.stack(experts, 2 * inter, k, generator))
    n, rows = weight.shape[0], tokens * (how.slots if output == PAIR else 1)
    values, scales = quantize_per_token(normal(rows, k, generator))
    x = (values.to(torch.float8_e4m3fn), scales)
    outs = []
    for variant in (SHIPPED, FOR_SANITIZERS):
        out = poison.empty(tokens * how.slots, n // (1 if output == PAIR else 2), dtype=torch.bfloat16)
        tensors = (weight.units, weight.row_scale, *x, out, how.entries, how.count, how.pairs, how.weights)
        call = emulator.build("moe", "many", variant=variant)
        call("engine_moe_grouped_many_fp8", CPU, *tensors, how.tokens, how.slots, n, k, output, 3, 1)
        outs.append(out)
    assert torch.equal(*outs)


@pytest.mark.parametrize("tokens", [20, 50, 140])
def test_one_matrix(generator, poison, tokens):
    """Each of the three cuts: with one tile a stage is given back while the next one's products run."""
    n, k = 256, COLUMNS * 256
    packed, x = linear.pack_w4a16(stack(0, n, k, generator)[0]), normal(tokens, k, generator)
    outs = []
    for variant in (SHIPPED, FOR_SANITIZERS):
        out = poison.empty(1, tokens, n, dtype=torch.float32)
        call = emulator.build("w4a16", "wide", variant=variant)
        sizes = (tokens, n, k, 1, int(Epilogue.PARTIAL), 2, 1)
        call("engine_w4a16_wide", CPU, packed.units, packed.row_scale, x, out, *sizes)
        outs.append(out)
    assert torch.equal(*outs)
