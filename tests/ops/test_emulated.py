"""Kernels on a CPU (tests/ops/emulator): some that a GPU has confirmed, so that it can be believed, and ops/moe."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import library
from engine.kernels.library import KernelError
from engine.kernels.skinny import Epilogue, Machine, Plan
from engine.ops.moe import cuda as moe_cuda
from engine.ops.norm import rms_norm
from engine.ops.norm.cuda import add_norm
from engine.ops.w4a16 import cuda as w4a16_cuda
from engine.ops.w4a16 import pack as w4a16_pack
from tests.ops import emulator
from tests.ops.emulator import BLACKWELL, HOPPER
from tests.ops.moe_products import (
    SWIGLU_ERROR,
    WEIGHTED_ERROR,
    matrix,
    normal,
    pack,
    planes_of,
    stack,
    swiglu_error,
    weighted_error,
)
from tests.ops.poison import product_error, relative_error
from tests.ops.sorted_routing import routing_by_sort
from tests.ops.test_moe_grouping import KINDS, SUBTLE, check, logits_for

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")


@pytest.fixture
def emulated(monkeypatch):
    """emulated(op, shared bytes): that op's launches run here."""

    def install(op, max_shared_bytes=HOPPER, multiprocessors=3):
        call = emulator.build(op, max_shared_bytes=max_shared_bytes)
        many = emulator.build(op, "many", max_shared_bytes=max_shared_bytes) if op == "moe" else call
        monkeypatch.setattr(library, "call", lambda name, *rest: (many if "many" in name else call)(name, *rest))
        monkeypatch.setattr(moe_cuda, "machine", lambda _: Machine(multiprocessors, max_shared_bytes))

    return install


# What a GPU has confirmed


@pytest.mark.parametrize(
    ("m", "n", "k", "cut"),
    [
        (1, 48, 512, Plan(1, 2)),
        (5, 48, 768, Plan(3, 2)),
        (9, 32, 512, Plan(1, 1, 2, 2)),
        (32, 16, 256, Plan(1, 1)),
    ],
)
@pytest.mark.parametrize("max_shared_bytes", [HOPPER, BLACKWELL])
def test_the_skinny_product(emulated, generator, m, n, k, cut, max_shared_bytes):
    emulated("w4a16", max_shared_bytes)
    weight, x = stack(0, n, k, generator)[0], normal(m, k, generator)
    out = torch.full((cut.slices, m, n), float("nan"))
    units = w4a16_pack.pack(weight.packed, weight.block_scale)
    w4a16_cuda.run(x, units, weight.row_scale, out, cut, Epilogue.PARTIAL, dependent=False)
    assert product_error(out.sum(0), x, weight.dequantize(torch.float32)) < 2e-5


@pytest.mark.parametrize(("m", "n", "small_rows"), [(1, 256, 0), (3, 512, 24), (2, 512, 257), (16, 64, 257)])
def test_the_norm_with_its_small_product(emulated, generator, m, n, small_rows):
    """The 35B's router has 257 rows; a GPU has seen up to 96."""
    emulated("norm")
    planes, residual = torch.randn(2, m, n, generator=generator), normal(m, n, generator)
    scale = torch.rand(n, generator=generator) + 0.5
    small = normal(small_rows, n, generator) if small_rows else None
    made = add_norm(planes, residual, scale, 1e-6, input_scale=torch.tensor(0.02), small_weight=small)
    added = residual + planes.sum(0).bfloat16()
    out = rms_norm(added, scale, 1e-6)
    assert torch.equal(made.residual, added)
    assert relative_error(made.out, out.double()) < 2.5e-3
    quantised = (made.out.float() / 0.02).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert relative_error(made.quantised.float(), quantised.double()) < 2e-2
    if small is not None:
        assert relative_error(made.small, made.out.double() @ small.double().T) < 2.5e-3


# What it is here for


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 2, 9, 31, 32])
@pytest.mark.parametrize(("experts", "top_k"), [(256, 8), (8, 8), (33, 3)])
def test_routing(emulated, kind, tokens, experts, top_k):
    emulated("moe")
    logits = logits_for(kind, tokens, experts, seed=tokens)
    check(moe_cuda.routing(logits, top_k), logits, top_k)


@pytest.mark.parametrize("kind", SUBTLE)
@pytest.mark.parametrize("tokens", [1, 32])
def test_routing_where_rounding_decides(emulated, kind, tokens):
    emulated("moe")
    logits = logits_for(kind, tokens, 256, seed=tokens)
    check(moe_cuda.routing(logits, 8), logits, 8)


def test_routing_of_every_batch_and_of_nothing_beyond_it(emulated):
    """Rows behind the batch would choose expert 0; no entry, pair or count knows of them."""
    emulated("moe")
    logits = logits_for("random", 33, 64, seed=3)
    logits[:, 0] = -50
    for tokens in range(1, 33):
        behind = logits.clone()
        behind[tokens:, 0] = 50
        made = moe_cuda.routing(behind[:tokens], 4)
        check(made, logits[:tokens], 4)
        used = made.entries[: int(made.count)]
        assert not (used[:, 0] == 0).any()
        assert int(used[:, 2].sum()) == tokens * 5


@pytest.mark.parametrize("kind", KINDS + SUBTLE)
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(33, 256, 8), (64, 33, 3), (95, 8, 8), (200, 64, 4)])
@pytest.mark.usefixtures("poison")
def test_routing_of_many(emulated, kind, tokens, experts, top_k):
    emulated("moe")
    logits = logits_for(kind, tokens, experts, seed=tokens)
    made, sorted_ones = moe_cuda.routing(logits, top_k), routing_by_sort(logits, top_k)
    check(made, logits, top_k)
    assert torch.equal(made.entries[: int(made.count)], sorted_ones.entries[: int(sorted_ones.count)])
    assert torch.equal(made.positions, sorted_ones.positions)
    assert torch.equal(made.ends, sorted_ones.ends)


SHAPES = [
    ("random", 1, 48, 512),
    ("random", 8, 16, 256),
    ("random", 9, 48, 512),
    ("ties", 17, 16, 256),
    ("one", 32, 16, 256),
    ("alike", 33, 16, 256),
    ("random", 70, 32, 512),
    ("one", 75, 16, 1024),
    ("ties", 90, 80, 256),
]
"""One to eight groups of eight an entry; tiles that warps share, of one warp, of none; an expert in several entries."""


@pytest.mark.parametrize(("kind", "tokens", "n", "k"), SHAPES)
@pytest.mark.parametrize(("max_shared_bytes", "blocks"), [(HOPPER, 3), (BLACKWELL, 5)])
@pytest.mark.usefixtures("poison")
def test_experts(emulated, generator, kind, tokens, n, k, max_shared_bytes, blocks):
    emulated("moe", max_shared_bytes, blocks)
    assert swiglu_error(kind, tokens, 8, n, k, generator) < SWIGLU_ERROR
    assert weighted_error(kind, tokens, 8, n, k, generator) < WEIGHTED_ERROR


@pytest.mark.parametrize("tokens", range(33, 71))
@pytest.mark.usefixtures("poison")
def test_down_by_pair(emulated, generator, tokens):
    """Entries of every length up to 64, so that in a group of eight any number of columns is written."""
    emulated("moe", (HOPPER, BLACKWELL)[tokens % 2])
    assert weighted_error(("random", "alike", "one")[tokens % 3], tokens, 8, 16, 256, generator) < WEIGHTED_ERROR


def test_more_blocks_than_tiles(emulated, generator):
    emulated("moe", HOPPER, 60)
    assert weighted_error("alike", 2, 8, 16, 256, generator) < WEIGHTED_ERROR


def test_an_expert_nobody_chose_is_not_read(emulated, generator):
    emulated("moe")
    down = stack(8, 16, 256, generator)
    how = moe_cuda.routing(logits_for("alike", 3, 8, 1), 4)
    x = normal(3 * how.slots, 256, generator)
    before = moe_cuda.down(x, pack(down), how)
    absent = next(e for e in range(8) if e not in how.ids[0].tolist())
    down[absent].row_scale.fill_(float("nan"))
    assert torch.equal(moe_cuda.down(x, pack(down), how), before)


@pytest.mark.parametrize("tokens", [5, 40])
def test_a_wrong_expert_is_seen(emulated, generator, tokens):
    """The comparison is not blind: two experts of five swapped in the stack."""
    emulated("moe")
    down = stack(4, 16, 256, generator)
    how = moe_cuda.routing(logits_for("random", tokens, 4, 2), 4)
    x = normal(tokens * how.slots, 256, generator)
    swapped = pack([down[1], down[0], *down[2:]])
    planes = planes_of(moe_cuda.down(x, swapped, how), tokens)
    first = how.ids[0].tolist().index(0)
    expected = x.double().view(tokens, how.slots, 256)[0, first] @ matrix(down[0]).T * how.weights.double()[first]
    assert relative_error(planes[first, 0], expected) > 0.5


# The emulator itself


@pytest.mark.parametrize(
    ("arguments", "code"),
    [({"slots": 17}, 1), ({"experts": 257}, 1), ({"tokens": 33}, 1), ({"slots": 1}, 1)],
)
def test_shapes_outside_the_contract_are_refused(emulated, arguments, code):
    emulated("moe")
    sizes = {"tokens": 2, "experts": 16, "slots": 3} | arguments
    with pytest.raises(KernelError, match=f"returned CUDA error {code}"):
        library.call("engine_moe_route", torch.device("cpu"), *([None] * 6), *sizes.values(), 0)


def test_a_launch_that_asks_for_too_much_shared_memory_is_refused(emulated):
    emulated("w4a16", BLACKWELL)
    sizes = (32, 16, 17408, 1, 1, 1, 1, int(Epilogue.PARTIAL), 0)
    with pytest.raises(KernelError, match="returned CUDA error 9"):
        library.call("engine_w4a16_skinny", torch.device("cpu"), *([None] * 4), *sizes)
