"""engine bench op moe, wide and norm on a CPU, small: what cases check is right, and a wrong kernel is not timed."""

from __future__ import annotations

import pytest
import torch

from engine import bench_cases, bench_tokens
from engine.bench_tokens import Sizes, moe_cases, routed_norm_cases, wide_cases
from engine.kernels import library
from engine.kernels.skinny import Machine
from engine.ops.moe import cuda as moe_cuda
from engine.ops.norm import cuda as norm_cuda
from engine.ops.w4a16 import wide
from tests.ops import emulator
from tests.ops.emulator import HOPPER

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")

CPU = torch.device("cpu")
SOURCES = {
    "engine_add_norm": ("norm", "kernel"),
    "engine_add_norm_route": ("norm", "kernel"),
    "engine_moe_router": ("moe", "router"),
    "engine_moe_route_many": ("moe", "many"),
    "engine_moe_grouped_many": ("moe", "many"),
    "engine_moe_grouped_many_fp8": ("moe", "many"),
    "engine_quantize": ("linear", "quantize"),
    "engine_moe_grouped_wide": ("moe", "wide"),
    "engine_w4a16_wide": ("w4a16", "wide"),
    "engine_w4a16_rows": ("linear", "kernel"),
}


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    """Launches run here, and a clone is enough of each weight."""
    calls = []

    def call(name, device, *arguments):
        calls.append(name)
        emulator.build(*SOURCES.get(name, ("moe", "kernel")))(name, device, *arguments)

    monkeypatch.setattr(library, "call", call)
    monkeypatch.setattr(library, "arch_of", lambda _: "90a")
    for module in (moe_cuda, wide):
        monkeypatch.setattr(module, "machine", lambda _: Machine(3, HOPPER))
    monkeypatch.setattr(bench_tokens, "copies_for", lambda _: 2)
    torch.manual_seed(0)
    return calls


def names(cases):
    return [case.name for case in cases]


@pytest.mark.parametrize(("tokens", "kernel"), [(3, "grouped"), (40, "grouped_many")])
def test_experts(emulated, tokens, kernel):
    cases = list(moe_cases(tokens, CPU, Sizes(256, 256, 5, 2)))
    assert names(cases)[1:] == [
        "moe experts gate_up + SwiGLU", "moe experts down", "moe FP8 experts gate_up + SwiGLU", "moe FP8 experts down"
    ]  # fmt: skip
    for case in cases:
        assert case.passed, (case.name, case.error)
        assert case.nbytes > 0
        case.run(case.copies - 1)
    assert {f"engine_moe_{kernel}", f"engine_moe_{kernel}_fp8", "engine_quantize"} < set(emulated)


def test_an_expert_multiplied_wrongly_is_not_timed(monkeypatch):
    real = moe_cuda.swiglu
    monkeypatch.setattr(moe_cuda, "swiglu", lambda *a, **k: real(*a, **k) * 1.02)
    _, *cases = moe_cases(3, CPU, Sizes(256, 256, 5, 2))
    assert [case.passed for case in cases] == [False, True, False, True]  # `down` is right, of what it was given


def test_rows_and_products_of_many_tokens():
    cases = list(wide_cases(20, CPU, Sizes(256, 256)))
    assert names(cases) == [
        "w4a16 wide gate_up + SwiGLU", "w4a16 rows of gate_up + SwiGLU", "w4a16 wide down", "w4a16 rows of down"
    ]  # fmt: skip
    for case in cases:
        assert case.passed, (case.name, case.error)
        case.run(1)


def test_where_a_library_multiplies_there_are_rows_alone():
    assert names(wide_cases(3, CPU, Sizes(256, 256))) == ["w4a16 rows of gate_up + SwiGLU", "w4a16 rows of down"]


ROUTED = Sizes(264, 0, 33, 3)


def test_the_norm_with_router_and_routing(emulated):
    [case] = routed_norm_cases(5, CPU, ROUTED)
    assert case.passed, case.error
    emulated.clear()
    _, how = case.run(case.copies - 1)
    assert emulated == ["engine_add_norm_route"]
    planes, rows, scale, router, logits = 2 * 5 * 264 * 4, 5 * 264 * 2, 264 * 4, 34 * 264 * 2, 5 * 34 * 2
    routed = int(how.count) * 16 + 4 + 5 * 4 * 4 + 5 * 4 * 4 + 5 * 3 * 4  # entries, count, pairs, weights, ids
    assert case.nbytes == planes + 3 * rows + scale + router + logits + routed


def test_it_is_timed_among_the_norms(monkeypatch):
    monkeypatch.setattr(bench_cases, "HIDDEN", 264)
    monkeypatch.setattr(bench_cases, "routed_norm_cases", lambda *given: routed_norm_cases(*given, ROUTED))
    cases = list(bench_cases.CASES["norm"](3, CPU))
    assert names(cases) == [
        "norm add + norm + E4M3", "norm add + norm + E4M3 + b, a", "norm add + norm + router + routing"
    ]  # fmt: skip
    assert all(case.passed for case in cases)


def test_more_tokens_are_not_routed_in_a_norm():
    assert not list(routed_norm_cases(33, CPU, ROUTED))


@pytest.mark.parametrize("what", ["residual", "out", "small", "ids", "weights"])
def test_a_fault_of_the_routed_norm_is_seen(monkeypatch, what):
    real = norm_cuda.add_norm_route

    def add_norm_route(*given, **more):
        normed, how = real(*given, **more)
        tensor = getattr(how if what in ("ids", "weights") else normed, what)
        tensor[0] = tensor[1]
        return normed, how

    monkeypatch.setattr(norm_cuda, "add_norm_route", add_norm_route)
    [case] = routed_norm_cases(5, CPU, ROUTED)
    assert not case.passed
