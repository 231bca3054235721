"""The product of lm_head with its argmax on a CPU (tests/ops/emulator): ties, NaN, every batch, blocks in any order."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import library
from engine.kernels.library import KernelError
from engine.kernels.skinny import Epilogue, Plan
from engine.ops.sample import cuda as sample_cuda
from engine.ops.w4a16 import cuda as w4a16_cuda
from engine.ops.w4a16 import pack as w4a16_pack
from tests.ops import argmax_products, emulator
from tests.ops.emulator import BLACKWELL, HOPPER

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")

CUTS = [Plan(1, 1), Plan(1, 7), Plan(1, 3), Plan(1, 2, 2, 1), Plan(1, 2, 3, 3)]
"""Of seven row tiles: one block, a block each, unequal blocks; phases, and windows of their own."""
N, K = 112, 768


@pytest.fixture
def install(monkeypatch):
    def emulated(max_shared_bytes=HOPPER):
        product = emulator.build("w4a16", max_shared_bytes=max_shared_bytes)
        separate = emulator.build("sample")

        def call(name, *arguments):
            (separate if name == "engine_argmax" else product)(name, *arguments)

        monkeypatch.setattr(library, "call", call)

    return emulated


def run(weight, x, cut, launches=1):
    """The launch, over poisoned outputs with a row behind the last -> (logits, ids, logits of the product alone)."""
    m, n = x.shape[0], weight.packed.shape[0]
    units, space = w4a16_pack.pack(weight.packed, weight.block_scale), sample_cuda.workspace(32, x.device)
    logits, plain = (torch.full((m + 1, n), float("nan"), dtype=torch.bfloat16) for _ in "lp")
    logits[m], ids = 7.0, torch.full((m + 1,), -1)
    for _ in range(launches):
        w4a16_cuda.run_argmax(x, units, weight.row_scale, logits[:m], ids[:m], space, cut, dependent=False)
        assert argmax_products.clean(space)
    assert int(ids[m]) == -1
    assert bool((logits[m] == 7.0).all())
    w4a16_cuda.run(x, units, weight.row_scale, plain[:m], cut, Epilogue.BF16, dependent=False)
    return logits[:m], ids[:m], plain[:m]


@pytest.mark.parametrize("kind", argmax_products.KINDS)
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("m", [1, 9])
def test_against_torch(install, generator, kind, m, cut):
    install()
    weight, x = argmax_products.make(kind, m, N, K, generator)
    argmax_products.check(*run(weight, x, cut))


@pytest.mark.parametrize("m", range(1, 33))
def test_every_batch(install, generator, m):
    install(BLACKWELL)
    weight, x = argmax_products.make("five rows" if m % 2 else "random", m, 48, 256, generator)
    argmax_products.check(*run(weight, x, Plan(1, 2)))


@pytest.mark.parametrize("kind", argmax_products.KINDS)
def test_the_separate_launch_says_the_same(install, generator, kind):
    install()
    weight, x = argmax_products.make(kind, 5, N, 256, generator)
    logits, ids, _ = run(weight, x, Plan(1, 3))
    separate, space = torch.full((5,), -1), sample_cuda.workspace(5, x.device)
    sample_cuda.argmax(logits.contiguous(), separate, space)
    assert torch.equal(ids, separate)
    assert argmax_products.clean(space)


def test_launch_after_launch_in_another_order_of_blocks(install, generator):
    install()
    weight, x = argmax_products.make("five rows", 17, N, 256, generator)
    argmax_products.check(*run(weight, x, Plan(1, 7), launches=6))


def test_a_workspace_that_was_not_clean_is_seen(install, generator):
    """The comparison is not blind: a key left over from a launch before wins."""
    install()
    weight, x = argmax_products.make("random", 2, 48, 256, generator)
    space = sample_cuda.workspace(2, x.device)
    space.best[1] = (0xFFFF << 32) | (2**32 - 1 - 40)
    units, ids = w4a16_pack.pack(weight.packed, weight.block_scale), torch.zeros(2, dtype=torch.int64)
    out = torch.empty(2, 48, dtype=torch.bfloat16)
    w4a16_cuda.run_argmax(x, units, weight.row_scale, out, ids, space, Plan(1, 2), dependent=False)
    assert ids.tolist() == [int(out[0].argmax()), 40]


def test_what_is_outside_the_contract_is_refused(install, generator):
    install()
    weight, x = argmax_products.make("random", 2, 48, 256, generator)
    units, space = w4a16_pack.pack(weight.packed, weight.block_scale), sample_cuda.workspace(2, x.device)
    out, ids = torch.empty(2, 48, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(KernelError, match="returned CUDA error 1"):
        w4a16_cuda.run_argmax(x, units, weight.row_scale, out, ids, space, Plan(1, 2, 1, 2), dependent=False)
    many = [torch.empty(0)] * 4 + [None] * 3  # a block of 65,552 rows, which is refused before anything is read
    with pytest.raises(KernelError, match="returned CUDA error 1"):
        library.call("engine_w4a16_argmax", x.device, *many, 1, 65552, 256, 1, 1, 1, 0)
    with pytest.raises(ValueError, match=r"expected int64 \[2\] and as much workspace"):
        w4a16_cuda.run_argmax(x, units, weight.row_scale, out, ids.int(), space, Plan(1, 2), dependent=False)
    small = sample_cuda.workspace(1, x.device)
    with pytest.raises(ValueError, match=r"expected int64 \[2\] and as much workspace"):
        w4a16_cuda.run_argmax(x, units, weight.row_scale, out, ids, small, Plan(1, 2), dependent=False)
