"""The norm that looks its tokens' rows up, on a CPU (tests/ops/emulator): bit for bit as over rows looked up before."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import library
from engine.kernels.library import KernelError
from engine.ops.norm.cuda import add_norm
from tests.ops import emulator
from tests.ops.embedded_norms import compare

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    monkeypatch.setattr(library, "call", emulator.build("norm"))


@pytest.mark.parametrize("m", [1, 3, 34])
@pytest.mark.parametrize(("n", "rows"), [(8, 0), (264, 0), (24, 96), (264, 3)])
@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.usefixtures("poison")
def test_as_over_rows_looked_up_before(m, n, rows, quantised, generator):
    compare(m, n, rows, 50, generator, quantised=quantised)


@pytest.mark.parametrize(("n", "rows"), [(2048, 64), (5120, 8)])
@pytest.mark.usefixtures("poison")
def test_wide_rows(n, rows, generator):
    compare(2, n, rows, 9, generator, quantised=True)


def test_the_first_and_the_last_row_and_one_row_for_all(generator):
    compare(4, 64, 12, 50, generator, ids=[49, 0, 0, 49])
    compare(32, 64, 12, 50, generator, ids=[7] * 32)


def test_ids_and_planes_together_are_refused(generator):
    table, scale = torch.randn(9, 64, generator=generator).bfloat16(), torch.ones(64)
    ids = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="found token ids and x; expected one of them"):
        add_norm(torch.zeros(1, 9, 64), table, scale, 1e-6, token_ids=ids)
    for wrong in (ids.int(), ids[None], torch.zeros(4, dtype=torch.int64)[::2]):
        with pytest.raises(ValueError, match=r"expected contiguous int64 \[m\]"):
            add_norm(None, table, scale, 1e-6, token_ids=wrong)
    nothing = [None] * 9
    with pytest.raises(KernelError, match="returned CUDA error 1"):
        library.call("engine_add_norm", table.device, *[None] * 3, table, ids, *nothing, 2, 64, 1, 0, 1e-6, 0)
