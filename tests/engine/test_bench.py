"""engine bench: what it refuses, what it prints; on a GPU, that every case passes its check and is timed."""

from __future__ import annotations

import pytest
import torch

from engine import bench
from engine.bench import BenchError, Case, Row
from engine.bench_cases import CASES
from engine.errors import UsageError
from engine.kernels import library
from engine.kernels.build import exported, sources


def case(error: float) -> Case:
    return Case("w4a16 down", 8, 50_000_000, lambda _: pytest.fail("timed"), 2, error, 1e-5)


@pytest.mark.parametrize("error", [1e-5, 0.3, float("nan")])
def test_a_failed_check_is_never_timed(error):
    with pytest.raises(BenchError, match=r"w4a16 down, batch 8: found error .* expected < 1e-05; not timed"):
        bench.measure(case(error))


def test_an_unknown_op_names_the_known():
    with pytest.raises(UsageError, match=r"found op 'gemm'; expected one of w4a16, w8a8"):
        bench.bench("gemm")


def test_without_a_gpu_nothing_is_timed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BenchError, match="found no CUDA device"):
        bench.bench("norm")


def test_rates_come_from_bytes_and_time():
    row = Row("gdn step", 1, 44_200_000, 20.0, 1e-3, 4.42e12)
    assert row.gbps == pytest.approx(2210.0)
    assert row.roof_share == pytest.approx(0.5)
    fields = bench.table([row]).splitlines()[1].split()
    assert fields == ["gdn", "step", "1", "20.00", "44.20", "2210", "50%", "1.0e-03"]


def test_a_device_whose_roof_nobody_measured_has_no_share():
    row = Row("a case whose name is longer than thirty letters", 1, 44_200_000, 20.0, 1e-3)
    head, line = bench.table([row]).splitlines()
    assert row.roof_share is None
    assert line.split()[-2] == "–"
    assert len(head) == len(line)


def test_copies_outgrow_the_cache_but_not_memory():
    assert bench.copies_for(2_000_000_000) == 2
    assert bench.copies_for(50_000_000) == 5
    assert bench.copies_for(1) == bench.MAX_COPIES


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["moe", "wide", "prefill"])
def test_cases_of_more_tokens_pass_too(op):
    rows = bench.bench(op, (1, 40, 200))
    assert all(row.time_us > 0 for row in rows)


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["norm", "gdn", "attention", "rope", "sample", "w8a8"])
def test_every_case_passes_its_check_and_is_timed(op):
    rows = bench.bench(op, (1, 3))
    assert rows
    assert all(row.time_us > 0 for row in rows)


@pytest.mark.gpu
def test_no_function_of_the_kernels_lacks_a_case(monkeypatch):
    """Each is launched by a case's check; on Hopper all of them are to be."""
    device = torch.device("cuda")
    if library.arch_of(device) != "90a":
        pytest.skip("needs a Hopper GPU")
    called, real = set(), library.call

    def call(name, *arguments):
        called.add(name)
        real(name, *arguments)

    monkeypatch.setattr(library, "call", call)
    for op, cases in CASES.items():
        for batch in (1, 40, 200) if op in ("moe", "wide", "prefill") else (1,):
            assert all(case.passed for case in cases(batch, device))
    assert {name for path in sources() for name in exported(path)} == called
