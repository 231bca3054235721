"""engine bench op's cases around a library's products, on a CPU, small: checks, bytes, and faults that are seen."""

from __future__ import annotations

import pytest
import torch

from engine import bench_cases, bench_library
from engine.bench_library import codes_cases, fp8_rows_cases, pairs_cases, swiglu_cases
from engine.bench_tokens import Sizes
from engine.kernels import library
from tests.ops import emulator

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")

CPU = torch.device("cpu")
SOURCES = {
    "engine_w8a8_rows": ("linear", "kernel"),
    "engine_quantize": ("linear", "quantize"),
    "engine_swiglu": ("linear", "kernel"),
    "engine_moe_route_many": ("moe", "many"),
    "engine_moe_spread": ("moe", "prefill"),
    "engine_moe_combine": ("moe", "prefill"),
}
OUTPUT = {
    "engine_w8a8_rows": 1,
    "engine_quantize": 3,
    "engine_swiglu": 1,
    "engine_moe_spread": 2,
    "engine_moe_combine": 3,
}
"""Which argument is written."""
MIXTURE = Sizes(264, 0, 33, 3)


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    """Launches run here, and a clone is enough of each weight. In what is returned: what was called."""
    calls = []

    def call(name, device, *arguments):
        calls.append(name)
        emulator.build(*SOURCES[name])(name, device, *arguments)

    monkeypatch.setattr(library, "call", call)
    monkeypatch.setattr(bench_library, "copies_for", lambda _: 2)
    torch.manual_seed(0)
    return calls


def all_cases(tokens=40):
    yield from fp8_rows_cases(tokens, CPU, [("qkv", 48, 384), ("out", 16, 128)])
    yield from codes_cases(tokens, CPU, Sizes(264, 0))
    yield from swiglu_cases(tokens, CPU, Sizes(0, 24))
    yield from pairs_cases(tokens, CPU, MIXTURE)


def test_every_case_passes_its_check_and_runs_on_every_copy(emulated):
    cases = list(all_cases())
    assert [case.name for case in cases] == [
        "w8a8 rows of qkv", "w8a8 rows of out", "x to E4M3 by token", "SwiGLU of a product", "moe x by pair",
        "moe weighted sum of pairs"
    ]  # fmt: skip
    for case in cases:
        assert case.passed, (case.name, case.error)
        emulated.clear()
        for i in range(case.copies):
            case.run(i)
        assert len(emulated) == case.copies
        assert emulated[0] in OUTPUT


def test_bytes_are_those_of_each_input_and_output_once():
    positions, weights, codes = 40 * 4 * 4, 40 * 4 * 4, 48 * 384
    by_pair, x, summed = 40 * 4 * 264 * 2, 40 * 264 * 2, 40 * 264 * 4
    assert [case.nbytes for case in all_cases()] == [
        2 * codes, 2 * 16 * 128, x + x // 2 + 40 * 4, 40 * (48 + 24) * 2, x + positions + by_pair,
        by_pair + positions + weights + summed
    ]  # fmt: skip


@pytest.mark.parametrize("broken", OUTPUT)
def test_one_wrong_element_keeps_a_case_from_being_timed(monkeypatch, broken):
    real = library.call

    def call(name, device, *arguments):
        real(name, device, *arguments)
        if name == broken:
            out = arguments[OUTPUT[name]].view(-1)
            out[-3:-2] = out[-3:-2] + 7

    monkeypatch.setattr(library, "call", call)
    marks = [case.passed for case in all_cases()]
    assert marks == [name != broken for name in ["engine_w8a8_rows"] * 2 + list(OUTPUT)[1:]]


def test_one_launch_of_swiglu_has_no_more_tokens_than_the_engine_gives_it(monkeypatch):
    monkeypatch.setattr(bench_library, "SWIGLU_TOKENS", 7)
    assert [(case.batch, case.nbytes) for case in swiglu_cases(9, CPU, Sizes(0, 8))] == [(7, 7 * 24 * 2)]


def test_few_tokens_have_no_positions():
    assert not list(pairs_cases(32, CPU, MIXTURE))


def test_the_ops_that_they_are_timed_under(monkeypatch):
    """At the sizes of the models, which are not run here."""
    asked = {}
    timed = {"wide_cases", "moe_cases", "codes_cases", "swiglu_cases", "pairs_cases", "fp8_rows_cases"}
    for name in timed:
        monkeypatch.setattr(bench_cases, name, lambda *given, name=name: asked.setdefault(name, given) and ())
    for op in ("wide", "moe"):
        assert not list(bench_cases.CASES[op](40, CPU))
    assert asked.keys() == timed
    assert ("out_proj, o_proj", 5120, 6144) in asked["fp8_rows_cases"][2]
