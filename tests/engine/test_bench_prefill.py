"""engine bench op prefill on a CPU, small: every case passes its check, and a fault keeps it from being timed."""

from __future__ import annotations

import pytest
import torch

from engine import bench_prefill
from engine.bench_prefill import Heads, prefill_cases
from engine.kernels import library
from tests.ops import emulator
from tests.ops.test_gdn_padded_emulated import ops  # noqa: F401

pytestmark = [
    pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU"),
    pytest.mark.usefixtures("ops"),
]
SMALL = Heads(key=1, value=2, query=4, kv=2)
SOURCES = {"engine_gdn_chunks": ("gdn", "chunks"), "engine_gdn_scan": ("gdn", "scan")}


@pytest.fixture(autouse=True)
def emulated(monkeypatch, ops):  # noqa: F811, ARG001
    """And attention's gate."""
    first = library.call

    def call(name, *rest):
        return (
            emulator.build("attention", "prefill")(name, *rest)
            if name == "engine_attention_gate"
            else first(name, *rest)
        )

    monkeypatch.setattr(library, "call", call)
    torch.manual_seed(0)


@pytest.mark.parametrize("tokens", [1, 70])
def test_every_case_passes_its_check(tokens):
    cases = list(prefill_cases(tokens, torch.device("cpu"), SMALL))
    names = ["gdn convolution", "gdn chunks, scan", "gdn gated norm", "attention of a prompt", "attention gate"]
    assert [case.name for case in cases] == names
    for case in cases:
        assert case.passed, (case.name, case.error)
        case.run(0)


def test_a_fault_is_seen(monkeypatch):
    real, plain, reference = bench_prefill.gate, bench_prefill.attention.prefill, bench_prefill.gdn.prefill
    monkeypatch.setattr(bench_prefill, "gate", lambda *a: real(*a) * 1.03)
    monkeypatch.setattr(bench_prefill.attention, "prefill", lambda q, *rest: plain(q * 1.1, *rest))
    monkeypatch.setattr(bench_prefill.gdn, "prefill", lambda *a: reference(*a) * 1.02)
    assert not any(case.passed for case in prefill_cases(70, torch.device("cpu"), SMALL))
