"""ops/moe/wide.cu in the emulator: Hopper's warpgroup products, held against float64 and against many.cu."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from engine.kernels import library
from engine.kernels.library import KernelError
from engine.kernels.skinny import Machine
from engine.ops.moe import cuda as moe_cuda
from tests.ops import emulator
from tests.ops.emulator import BLACKWELL, HOPPER
from tests.ops.moe_products import (
    SWIGLU_ERROR,
    TOP_K,
    WEIGHTED_ERROR,
    chosen,
    matrix,
    normal,
    pack,
    pack_gate_up,
    stack,
)
from tests.ops.poison import relative_error
from tests.ops.test_moe_grouping import logits_for

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")

SWIGLU, WEIGHTED, PAIR = 0, 1, 2
EXPERTS = 8
CASES = [
    ("random", 33, 256),
    ("ties", 40, 512),
    ("one", 65, 768),
    ("alike", 64, 256),
    ("random", 90, 256),
    ("random", 150, 512),
]
"""Entries of one to eight groups of eight pairs, odd ones among them; an expert in several; one to three columns."""


@pytest.fixture
def routed(monkeypatch):
    many, few = emulator.build("moe", "many"), emulator.build("moe")
    monkeypatch.setattr(library, "call", lambda name, *rest: (many if "many" in name else few)(name, *rest))
    monkeypatch.setattr(moe_cuda, "machine", lambda _: Machine(3, HOPPER))
    return lambda kind, tokens: moe_cuda.routing(logits_for(kind, tokens, EXPERTS, tokens), TOP_K)


def wide(x, experts, how, out, output, blocks=3, *, max_shared_bytes=HOPPER):
    n, k = experts.shape
    tensors = (experts.units, experts.row_scale, x, out, how.entries, how.count, how.pairs, how.weights)
    sizes = (how.tokens, how.slots, n, k, output, blocks, 1)
    call = emulator.build("moe", "wide", max_shared_bytes=max_shared_bytes)
    call("engine_moe_grouped_wide", x.device, *tensors, *sizes)


@pytest.mark.parametrize(("kind", "tokens", "k"), CASES)
@pytest.mark.parametrize("blocks", [1, 5])
def test_gate_up(routed, generator, poison, kind, tokens, k, blocks):
    how, inter = routed(kind, tokens), 128
    gate, up = stack(EXPERTS, inter, k, generator), stack(EXPERTS, inter, k, generator)
    x = normal(tokens, k, generator)
    out = poison.empty(tokens * how.slots, inter, dtype=torch.bfloat16)
    wide(x, pack_gate_up(gate, up), how, out, SWIGLU, blocks)
    gates, ups = [matrix(w) for w in gate], [matrix(w) for w in up]
    rows = [
        torch.stack([F.silu(x[t].double() @ gates[e].T) * (x[t].double() @ ups[e].T) for e in slots])
        for t, slots in enumerate(chosen(how, EXPERTS))
    ]
    assert relative_error(out.view(tokens, how.slots, inter), torch.stack(rows)) < SWIGLU_ERROR


@pytest.mark.parametrize(("kind", "tokens", "k"), CASES)
@pytest.mark.parametrize("n", [256, 512])
def test_down(routed, generator, poison, kind, tokens, k, n):
    how, down = routed(kind, tokens), stack(EXPERTS, n, k, generator)
    x = normal(tokens * how.slots, k, generator)
    out = poison.empty(tokens * how.slots, n, dtype=torch.bfloat16)
    wide(x, pack(down), how, out, PAIR)
    matrices, rows = [matrix(w) for w in down], x.double()
    for pair, e in enumerate(e for slots in chosen(how, EXPERTS) for e in slots):
        assert relative_error(out[pair], rows[pair] @ matrices[e].T) < WEIGHTED_ERROR


@pytest.mark.parametrize(("kind", "tokens", "k"), [("random", 17, 256), ("one", 32, 512), ("ties", 25, 768)])
def test_a_decoding_step_s_planes(routed, generator, poison, kind, tokens, k):
    """Entries of at most eight pairs, and each pair's output times its weight."""
    how, down = routed(kind, tokens), stack(EXPERTS, 256, k, generator)
    x = normal(tokens * how.slots, k, generator)
    out = poison.empty(how.slots, tokens, 256, dtype=torch.float32)
    wide(x, pack(down), how, out, WEIGHTED)
    matrices, rows, weights = [matrix(w) for w in down], x.double(), how.weights.double()
    for pair, e in enumerate(e for slots in chosen(how, EXPERTS) for e in slots):
        expected = rows[pair] @ matrices[e].T * weights[pair]
        assert relative_error(out[pair % how.slots, pair // how.slots], expected) < WEIGHTED_ERROR


def test_more_blocks_than_tasks(routed, generator, poison):
    how, down = routed("random", 33), stack(EXPERTS, 256, 256, generator)
    x = normal(33 * how.slots, 256, generator)
    outs = [poison.empty(33 * how.slots, 256, dtype=torch.bfloat16) for _ in range(2)]
    for blocks, out in zip((2, 60), outs, strict=True):
        wide(x, pack(down), how, out, PAIR, blocks)
    assert torch.equal(*outs)


def test_an_expert_nobody_chose_is_not_read(routed, generator, poison):
    how, down = routed("alike", 40), stack(EXPERTS, 256, 256, generator)
    absent = next(e for e in range(EXPERTS) if e not in how.ids[0].tolist())
    down[absent].row_scale.fill_(float("nan"))
    out = poison.empty(40 * how.slots, 256, dtype=torch.bfloat16)
    wide(normal(40 * how.slots, 256, generator), pack(down), how, out, PAIR)
    assert not out.isnan().any()


def test_a_column_out_of_order_is_seen(routed, generator, poison):
    """The comparison is not blind to the order of columns: two neighbours of x exchanged."""
    how, down = routed("random", 33), stack(EXPERTS, 256, 256, generator)
    x = normal(33 * how.slots, 256, generator)
    moved = x[:, [1, 0, *range(2, 256)]].contiguous()
    outs = [poison.empty(33 * how.slots, 256, dtype=torch.bfloat16) for _ in range(2)]
    for rows, out in zip((x, moved), outs, strict=True):
        wide(rows, pack(down), how, out, PAIR)
    assert relative_error(outs[1], outs[0].double()) > 5 * WEIGHTED_ERROR


@pytest.mark.parametrize(
    ("wide", "arch", "tokens", "rows", "taken"),
    [
        (True, "90a", 40, 512, True),
        (True, "90a", 39, 512, False),
        (True, "90a", 40, 272, False),
        (True, "121a", 40, 512, False),
        (False, "90a", 40, 512, False),
    ],
)
def test_where_it_is_taken(monkeypatch, wide, arch, tokens, rows, taken):
    monkeypatch.setattr(moe_cuda, "WIDE", wide)
    monkeypatch.setattr(moe_cuda, "WIDE_TOKENS", 40)
    monkeypatch.setattr(library, "arch_of", lambda _: arch)
    assert (moe_cuda._kernel(tokens, rows, torch.device("cpu")) == "engine_moe_grouped_wide") is taken


@pytest.mark.parametrize(
    ("n", "k", "output", "max_shared_bytes", "code"),
    [
        (272, 256, PAIR, HOPPER, 1),
        (256, 128, PAIR, HOPPER, 1),
        (256, 256, 3, HOPPER, 1),
        (256, 256, PAIR, BLACKWELL, 9),
    ],
)
def test_what_it_does_not_do_is_refused(routed, n, k, output, max_shared_bytes, code):
    how = routed("random", 33)
    experts = moe_cuda.Experts(torch.empty(1, k // 256, 2304, dtype=torch.uint8), torch.empty(1), n)
    x, out = torch.empty(1, k, dtype=torch.bfloat16), torch.empty(1, n)
    tensors = (experts.units, experts.row_scale, x, out, how.entries, how.count, how.pairs, how.weights)
    call = emulator.build("moe", "wide", max_shared_bytes=max_shared_bytes)
    with pytest.raises(KernelError, match=f"CUDA error {code}"):
        call("engine_moe_grouped_wide", x.device, *tensors, how.tokens, how.slots, n, k, output, 3, 1)
