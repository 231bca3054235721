"""The router's product with the routing behind it, on a CPU (tests/ops/emulator), and when a norm does both itself."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import library
from engine.kernels.library import KernelError
from engine.ops.moe import cuda
from tests.ops import emulator
from tests.ops.moe_products import normal
from tests.ops.routed_norms import KINDS, inputs, same
from tests.ops.test_moe_grouping import check

needs_compiler = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")


@pytest.fixture
def _emulated(monkeypatch):
    alone, behind = emulator.build("moe", "router"), emulator.build("moe")
    monkeypatch.setattr(library, "call", lambda name, *rest: (alone if "router" in name else behind)(name, *rest))


@pytest.fixture
def arrived():
    return torch.zeros(1, dtype=torch.int32)


def off(logits, x, router):
    """How many logits are further than one rounding to bfloat16 from float64 ones."""
    x, router = x.double(), router.double()
    exact = x @ router.T
    size = x.norm(dim=1)[:, None] * router.norm(dim=1)
    return int(((logits.double() - exact).abs() > exact.abs() * 2**-8 + size * 1e-6).sum())


def compare(x, router, top_k, arrived):
    """The product against float64; the routing against its definition, and bit for bit against a launch of its own."""
    logits, made = cuda.router(x, router, top_k, arrived)
    assert off(logits, x, router) == 0
    same(made, cuda.routing(logits, top_k))
    check(made, logits, top_k)
    assert arrived.tolist() == [0]
    return made


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("m", "n", "experts", "top_k"), [(9, 64, 256, 8), (17, 40, 33, 3), (19, 24, 31, 15)])
@pytest.mark.usefixtures("poison", "_emulated")
def test_of_awkward_logits(kind, m, n, experts, top_k, arrived, generator):
    _, residual, _, router = inputs(kind, m, n, experts, 1, generator)
    compare((residual.float() / 4).bfloat16(), router, top_k, arrived)


@needs_compiler
@pytest.mark.parametrize("m", [1, 2, 8, 15, 16, 17, 31, 32])
@pytest.mark.usefixtures("poison", "_emulated")
def test_every_batch(m, arrived, generator):
    compare(normal(m, 72, generator), normal(13, 72, generator), 4, arrived)


@needs_compiler
@pytest.mark.parametrize("n", [8, 504, 2048, 2056, 4104])
@pytest.mark.usefixtures("poison", "_emulated")
def test_every_width(n, arrived, generator):
    """Columns that not every warp has, and more than are loaded at a time."""
    compare(normal(19, n, generator), normal(18, n, generator), 8, arrived)


@needs_compiler
@pytest.mark.usefixtures("_emulated")
def test_a_router_row_out_of_place_is_seen(arrived, generator):
    """The comparison is not blind."""
    x, router = normal(9, 64, generator), normal(9, 64, generator)
    logits, _ = cuda.router(x, router.roll(1, 0), 2, arrived)
    assert off(logits, x, router) > logits.numel() // 2


@needs_compiler
@pytest.mark.parametrize("changed", [{"m": 33}, {"m": 0}, {"experts": 257}, {"slots": 17}, {"slots": 1}, {"n": 12}])
@pytest.mark.usefixtures("_emulated")
def test_shapes_outside_the_contract_are_refused(changed):
    sizes = {"m": 2, "n": 64, "experts": 16, "slots": 3} | changed
    with pytest.raises(KernelError, match="returned CUDA error 1"):
        library.call("engine_moe_router", torch.device("cpu"), *([None] * 9), *sizes.values(), 0)


@pytest.mark.parametrize(
    ("m", "experts", "top_k", "columns", "said"),
    [
        (33, 16, 3, 64, "found 33 tokens, 16 experts, top 3; expected at most 32, 256 and 15"),
        (2, 257, 3, 64, "257 experts"),
        (2, 16, 16, 64, "top 16"),
        (2, 16, 3, 72, r"router torch.bfloat16 \[17, 72\]; expected contiguous bf16 with 64 columns"),
    ],
)
def test_what_the_launch_does_not_take_is_named(m, experts, top_k, columns, said, arrived, generator):
    with pytest.raises(ValueError, match=said):
        cuda.router(normal(m, 64, generator), normal(experts + 1, columns, generator), top_k, arrived)


def test_a_norm_routes_itself_where_that_is_cheaper():
    """The 35B's: 257 rows of 2048."""
    assert [m for m in range(1, 33) if not cuda.routes_in_norm(m, 4, 256, 2048)] == list(range(13, 33))
    assert all(cuda.routes_in_norm(m, 4, 15, 2048) for m in range(1, 33)), "a small router is no work"
    assert cuda.routes_in_norm(12, 4, 256, 2048)
    assert not cuda.routes_in_norm(12, 9, 256, 2048), "planes count"
