"""The norm of x in bf16, by pair or from one product, on a CPU (tests/ops/emulator): bit for bit as of fp32 planes."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import library
from engine.kernels.library import KernelError
from engine.ops.moe.cuda import WeightedPairs
from engine.ops.norm.cuda import add_norm, add_norm_route
from tests.ops import emulator
from tests.ops.paired_norms import both, pairs_of, products, same

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    monkeypatch.setattr(library, "call", emulator.build("norm"))


@pytest.mark.parametrize("m", range(33, 71))
@pytest.mark.usefixtures("poison")
def test_pairs(m, generator):
    """Every number of slots that a mixture may have, the shared expert's included."""
    n, slots = (8, 24, 264, 520)[m % 4], 2 + m % 15
    pairs = pairs_of(m, n, slots, generator)
    assert same(*both(pairs, products(pairs, m), generator, quantised=m % 3 == 0))


@pytest.mark.parametrize("n", [2048, 5120])
@pytest.mark.parametrize("slots", [2, 9])
@pytest.mark.usefixtures("poison")
def test_wide_pairs(n, slots, generator):
    pairs = pairs_of(35, n, slots, generator)
    assert same(*both(pairs, products(pairs, 35), generator, quantised=True))


@pytest.mark.parametrize("m", [1, 32, 33, 70])
@pytest.mark.parametrize("n", [8, 264, 2048])
@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.usefixtures("poison")
def test_one_product_in_bf16(m, n, quantised, generator):
    x = torch.randn(1, m, n, generator=generator).bfloat16()
    x[0, :, ::3] = -0.0
    assert same(*both(x, x.float(), generator, quantised=quantised))


@pytest.mark.parametrize("what", ["order", "weight", "token"])
def test_what_is_off_is_seen(what, generator):
    """Two pairs of a token added in the other order; two of its weights, or two tokens' pairs, swapped."""
    m, n, slots = 34, 264, 5
    pairs = pairs_of(m, n, slots, generator)
    planes = products(pairs, m)
    values, weights = pairs.values.view(m, slots, n).clone(), pairs.weights.view(m, slots).clone()
    match what:
        case "order":
            values[7, [3, 4]], weights[7, [3, 4]] = values[7, [4, 3]], weights[7, [4, 3]]
        case "weight":
            weights[7, [1, 2]] = weights[7, [2, 1]]
        case "token":
            values[[7, 8]] = values[[8, 7]]
    assert not same(*both(WeightedPairs(values.view(-1, n), weights.flatten()), planes, generator, quantised=False))


def test_what_does_not_fit_together_is_refused(generator):
    m, n = 34, 64
    residual, scale = torch.randn(m, n, generator=generator).bfloat16(), torch.ones(n)
    pairs = pairs_of(m, n, 3, generator)
    for wrong, said in (
        (WeightedPairs(pairs.values.float(), pairs.weights), "found pairs torch.float32"),
        (WeightedPairs(pairs.values[:-1], pairs.weights), r"found pairs torch.bfloat16 \[101, 64\]"),
        (WeightedPairs(pairs.values, pairs.weights[:-1]), "found pairs"),
        (WeightedPairs(pairs.values, pairs.weights.double()), "found weights torch.float64"),
        (WeightedPairs(pairs.values, pairs.weights[:, None]), r"found weights torch.float32 \[102, 1\]"),
        (torch.zeros(2, m, n).bfloat16(), r"found planes torch.bfloat16 \[2, 34, 64\]"),
        (torch.zeros(m, n).bfloat16(), r"expected contiguous fp32 \[slices, 34, 64\] or bf16 \[1, 34, 64\]"),
        (torch.zeros(1, m, 2 * n)[..., ::2], "expected contiguous"),
        (torch.zeros(1, m, n).double(), "found planes torch.float64"),
    ):
        with pytest.raises(ValueError, match=said):
            add_norm(wrong, residual, scale, 1e-6)
    small = torch.zeros(3, n).bfloat16()
    with pytest.raises(ValueError, match="found x in bf16 and a small product of 3 rows"):
        add_norm(pairs, residual, scale, 1e-6, small_weight=small)
    with pytest.raises(ValueError, match="found token ids and x; expected one of them"):
        add_norm(pairs, residual, scale, 1e-6, token_ids=torch.zeros(m, dtype=torch.int64))
    few = torch.zeros(1, 2, n).bfloat16()
    with pytest.raises(ValueError, match="add_norm_route: found x in bf16"):
        add_norm_route(few, residual[:2], scale, 1e-6, small, 1, torch.zeros(1, dtype=torch.int32))


@pytest.mark.parametrize("wrong", ["planes", "small product"])
def test_the_kernel_refuses_pairs_beside_others(wrong):
    pairs, residual, made, out, small = (torch.zeros(2, 64).bfloat16() for _ in range(5))
    planes = torch.zeros(1, 2, 64) if wrong == "planes" else None
    rows = 2 if wrong == "small product" else 0
    x = (planes, pairs, None, residual, None, None, made)
    with pytest.raises(KernelError, match="returned CUDA error 1"):
        library.call("engine_add_norm", CPU, *x, torch.ones(64), out, None, None, small, small, 2, 64, 1, rows, 1e-6, 0)
