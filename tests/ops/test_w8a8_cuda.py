"""ops/w8a8 on a GPU against the product of the same E4M3 values in float64; cuts, odd sizes, poisoned outputs."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.skinny import Epilogue, Plan
from engine.ops.w8a8 import cuda, pack
from tests.ops.poison import product_error, relative_error

pytestmark = pytest.mark.gpu

PRODUCT_ERROR = 2e-5
BF16_ERROR = 2.5e-3

SHAPES = [(16, 128), (48, 384), (272, 1280), (1040, 2048), (5120, 6144), (512, 5120)]
CUTS = [Plan(1, 1), Plan(2, 3), Plan(9, 7), Plan(1, 5, 3), Plan(2, 4, 5, 3), Plan(3, 10, 1, 4), Plan(1, 1, 20, 49)]


def make(m, n, k, generator):
    x, w = (torch.randn(r, k, device="cuda", generator=generator).to(torch.float8_e4m3fn) for r in (m, n))
    return x, w, torch.rand(n, device="cuda", generator=generator) + 0.1


def product(x, w, row_scale):
    return x.double() @ w.double().T * row_scale.double()


@pytest.mark.parametrize("m", [1, 2, 7, 8, 9, 16, 17, 27, 32])
@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.usefixtures("poison")
def test_partial_planes_sum_to_the_product(m, n, k, cuda_generator):
    x, w, row_scale = make(m, n, k, cuda_generator)
    out = cuda.w8a8_partial(x, pack.pack(w), row_scale)
    assert product_error(out.sum(0), x, w.float() * row_scale[:, None]) < PRODUCT_ERROR


@pytest.mark.parametrize("m", [1, 8, 13, 32])
@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.usefixtures("poison")
def test_bf16(m, n, k, cuda_generator):
    x, w, row_scale = make(m, n, k, cuda_generator)
    out = cuda.w8a8(x, pack.pack(w), row_scale)
    assert out.dtype == torch.bfloat16
    assert relative_error(out, product(x, w, row_scale)) < BF16_ERROR


@pytest.mark.parametrize("m", [3, 11, 30])
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.usefixtures("poison")
def test_every_cut_gives_the_product(m, cut, cuda_generator):
    x, w, row_scale = make(m, 784, 2560, cuda_generator)
    out = torch.empty(cut.slices, m, 784, device="cuda")
    cuda.run(x, pack.pack(w), row_scale, out, cut, Epilogue.PARTIAL, False)
    assert product_error(out.sum(0), x, w.float() * row_scale[:, None]) < PRODUCT_ERROR


@pytest.mark.usefixtures("poison")
def test_extreme_codes(cuda_generator):
    """The largest, the smallest and both zeros of E4M3, in every lane's place."""
    codes = torch.tensor([0x00, 0x80, 0x01, 0x81, 0x7E, 0xFE, 0x08, 0x38], dtype=torch.uint8, device="cuda")
    x, w = (
        codes[torch.randint(0, 8, (r, 512), device="cuda", generator=cuda_generator)].view(torch.float8_e4m3fn)
        for r in (8, 64)
    )
    row_scale = torch.ones(64, device="cuda")
    out = cuda.w8a8_partial(x, pack.pack(w), row_scale).sum(0)
    assert relative_error(out, product(x, w, row_scale)) < 5e-6


def test_a_token_does_not_depend_on_its_neighbours(cuda_generator):
    x, w, row_scale = make(8, 1040, 2048, cuda_generator)
    units = pack.pack(w)
    together = cuda.w8a8(x, units, row_scale)
    for i in range(8):
        assert torch.equal(cuda.w8a8(x[i : i + 1].contiguous(), units, row_scale)[0], together[i])


def test_operands_that_do_not_fit_are_named(cuda_generator):
    x, w, row_scale = make(2, 48, 384, cuda_generator)
    units = pack.pack(w)
    with pytest.raises(ValueError, match=r"bfloat16.*expected contiguous float8_e4m3fn"):
        cuda.w8a8(x.bfloat16(), units, row_scale)
    with pytest.raises(ValueError, match="for k 128"):
        cuda.w8a8(x.view(torch.uint8)[:, :128].contiguous().view(torch.float8_e4m3fn), units, row_scale)
