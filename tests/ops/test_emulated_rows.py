"""The launches that lay weights out in row order, on a CPU (tests/ops/emulator): dequantised weights, bit for bit."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import library
from engine.kernels.library import KernelError
from engine.ops.linear.cuda import Scratch, pack_w4a16, pack_w8a8
from engine.weights.types import Fp8Weight, Nvfp4Weight
from tests.ops import emulator

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    monkeypatch.setattr(library, "call", emulator.build("linear"))


@pytest.mark.parametrize(("n", "k"), [(16, 256), (48, 512), (32, 768)])
def test_nvfp4(n, k, generator):
    """Every code under scales of all kinds: zero, subnormal, the largest; an odd number of units along k too."""
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=generator)
    bits = torch.randint(0, 0x7F, (n, k // 16), dtype=torch.uint8, generator=generator)
    bits[::3] = torch.randint(0, 8, bits[::3].shape, dtype=torch.uint8, generator=generator)
    weight = Nvfp4Weight(packed, bits.view(torch.float8_e4m3fn), torch.rand(n, generator=generator) * 1e-3 + 1e-5)
    scratch = Scratch(2 * n * k, CPU)
    scratch.buffer.fill_(0xFF)
    rows, expected = scratch.rows(pack_w4a16(weight)), weight.dequantize(torch.bfloat16)
    assert torch.equal(rows.float(), expected.float())


def test_fp8(generator):
    codes = torch.randint(0, 0x7F, (32, 384), dtype=torch.uint8, generator=generator)
    weight = Fp8Weight(codes.view(torch.float8_e4m3fn), torch.ones(32), None)
    rows = Scratch(32 * 384, CPU).rows(pack_w8a8(weight))
    assert torch.equal(rows.view(torch.uint8), codes)


@pytest.mark.parametrize(("n", "k"), [(8, 256), (16, 128), (16 * 65536, 256)])
def test_shapes_outside_the_contract_are_refused(n, k):
    units, scale, out = torch.zeros(1), torch.zeros(1), torch.zeros(1)
    with pytest.raises(KernelError, match="returned CUDA error 1"):
        library.call("engine_w4a16_rows", CPU, units, scale, out, n, k)
