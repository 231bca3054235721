"""The norm with router and routing in one launch, on a CPU (tests/ops/emulator): bit for bit as two launches."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import library
from engine.kernels.library import KernelError
from engine.ops.norm.cuda import add_norm_route
from tests.ops import emulator
from tests.ops.routed_norms import EPS, KINDS, compare, inputs, same

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    norm, moe = emulator.build("norm"), emulator.build("moe")
    monkeypatch.setattr(library, "call", lambda name, *rest: (moe if "moe" in name else norm)(name, *rest))


@pytest.fixture
def arrived():
    return torch.zeros(1, dtype=torch.int32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("m", "n", "experts", "top_k"), [(1, 64, 256, 8), (2, 264, 33, 3), (17, 8, 8, 8), (19, 24, 31, 15)]
)
@pytest.mark.usefixtures("poison")
def test_as_two_launches(kind, m, n, experts, top_k, arrived, generator):
    compare(inputs(kind, m, n, experts, 3, generator), top_k, arrived)


@pytest.mark.parametrize(("m", "n"), [(1, 2048), (1, 5120)])
@pytest.mark.usefixtures("poison")
def test_wide_rows(m, n, arrived, generator):
    """The 35B's width, and the widest: more warps for the row than for the routing."""
    compare(inputs("random", m, n, 256 if n == 2048 else 8, 9, generator), 8, arrived)


@pytest.mark.parametrize("m", [1, 2, 3, 8, 9, 15, 16, 17, 31, 32])
@pytest.mark.usefixtures("poison")
def test_every_batch(m, arrived, generator):
    compare(inputs("random", m, 16, 12, 1, generator), 4, arrived)


def test_all_tokens_to_the_same_experts(arrived, generator):
    made = compare(inputs("alike", 32, 16, 64, 2, generator), 8, arrived)
    assert made.entries[: int(made.count), 2].tolist() == [8] * 36


def test_an_expert_far_ahead_and_one_far_behind(arrived, generator):
    """The kinds are what they are called."""
    ahead = compare(inputs("one", 9, 64, 256, 2, generator), 8, arrived)
    assert (ahead.ids[:, 0] == 128).all()
    behind = compare(inputs("never", 9, 64, 12, 2, generator), 11, arrived)
    assert not (behind.ids == 6).any()


def test_equal_logits_choose_the_lowest_experts(arrived, generator):
    made = compare(inputs("equal", 3, 64, 256, 2, generator), 8, arrived)
    assert made.ids.tolist() == [list(range(8))] * 3


def test_repeated_launches_agree(arrived, generator):
    """With one workspace, over batches that grow and shrink; which block is the last is drawn anew each time."""
    first = {m: inputs("ties", m, 32, 12, 2, generator) for m in (1, 7, 18)}
    expected = {m: compare(tensors, 4, arrived) for m, tensors in first.items()}
    for m in (7, 1, 18, 7, 1, 18):
        planes, residual, scale, router = first[m]
        same(add_norm_route(planes, residual, scale, EPS, router, 4, arrived)[1], expected[m])
        assert arrived.tolist() == [0]


def test_a_workspace_that_is_not_zero_is_seen(generator):
    """The comparison is not blind: with one arrival too many the block before the last routes what is not there yet."""
    arrived = torch.ones(1, dtype=torch.int32)
    planes, residual, scale, router = inputs("random", 2, 32, 64, 2, generator)
    add_norm_route(planes, residual, scale, EPS, router, 4, arrived)
    assert arrived.tolist() != [0]


@pytest.mark.parametrize("changed", [{"m": 33}, {"m": 0}, {"experts": 257}, {"slots": 17}, {"slots": 1}, {"n": 12}])
def test_shapes_outside_the_contract_are_refused(changed):
    sizes = {"m": 2, "n": 64, "slices": 1, "experts": 16, "slots": 3} | changed
    with pytest.raises(KernelError, match="returned CUDA error 1"):
        library.call("engine_add_norm_route", torch.device("cpu"), *([None] * 13), *sizes.values(), EPS, 0)


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
    planes, residual, scale, _ = inputs("random", m, 64, 4, 1, generator)
    router = torch.zeros(experts + 1, columns, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=said):
        add_norm_route(planes, residual, scale, EPS, router, top_k, arrived)
