"""Products of more than 32 tokens on torch stand-ins for their kernels: what a norm is given."""

from __future__ import annotations

import weakref

import pytest
import torch

from engine.ops.linear import cuda
from engine.weights.types import Fp8Weight, Nvfp4Weight
from tests.engine.models import kernels_on_cpu

CPU = torch.device("cpu")
N, K = 48, 256


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    kernels_on_cpu.install(monkeypatch)


@pytest.fixture
def scratch():
    return cuda.Scratch(2 * N * K, CPU)


def fp8(generator, *, static):
    weight = (torch.randn(N, K, generator=generator) * 50).clamp(-448, 448).to(torch.float8_e4m3fn)
    scale = torch.rand(N, generator=generator) * 1e-3 + 1e-4
    return cuda.pack_w8a8(Fp8Weight(weight, scale, torch.tensor(0.02) if static else None))


def inputs(m, generator, *, static):
    x = torch.randn(m, K, generator=generator)
    return (x * 20).to(torch.float8_e4m3fn) if static else x.bfloat16()


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("m", [33, 70])
def test_an_fp8_product_goes_to_the_norm_as_the_library_leaves_it(m, static, generator, scratch):
    weight, x = fp8(generator, static=static), inputs(m, generator, static=static)
    made = cuda.planes(x, weight, scratch)
    assert made.dtype == torch.bfloat16
    assert torch.equal(made, cuda.project(x, weight, scratch)[None])


def test_others_stay_in_fp32(generator, scratch):
    """Of few tokens; and NVFP4's, which a library sums up without rounding."""
    few = cuda.planes(inputs(32, generator, static=True), fp8(generator, static=True), scratch)
    packed = torch.randint(0, 256, (N, K // 2), dtype=torch.uint8, generator=generator)
    four = cuda.pack_w4a16(Nvfp4Weight(packed, torch.ones(N, K // 16).to(torch.float8_e4m3fn), torch.ones(N)))
    many = cuda.planes(torch.randn(33, K, generator=generator).bfloat16(), four, scratch)
    assert few.dtype == many.dtype == torch.float32


def test_products_share_one_tensor_of_ones(generator, scratch, monkeypatch):
    """It is made once for the largest step so far, and nobody writes to it."""
    seen, product = [], torch._scaled_mm
    monkeypatch.setattr(torch, "_scaled_mm", lambda *a, **k: seen.append(k["scale_a"]) or product(*a, **k))
    weight = fp8(generator, static=True)
    for m in (40, 70, 33, 70, 64):
        cuda.project(inputs(m, generator, static=True), weight, scratch)
        cuda.planes(inputs(m, generator, static=True), weight, scratch)
    first, *others = seen[2:]
    assert {scale.data_ptr() for scale in others} == {first.data_ptr()}
    for scale, m in zip(seen, (40, 40, 70, 70, 33, 33, 70, 70, 64, 64), strict=True):
        assert torch.equal(scale, torch.ones(m, 1))
        assert scale.is_contiguous()


def test_what_a_graph_may_read_is_never_let_go(scratch):
    """The server's own warm-up, of a larger step than any graph's, comes after the capture."""
    kept = weakref.ref(scratch.ones(40)._base)
    scratch.ones(5000)
    assert kept() is not None
    assert torch.equal(kept(), torch.ones(40, 1))


def test_steps_that_grow_one_by_one_keep_little(scratch, monkeypatch):
    made, ones = [], torch.ones
    monkeypatch.setattr(torch, "ones", lambda *a, **k: made.append(a[0]) or ones(*a, **k))
    for tokens in range(33, 5000):
        assert scratch.ones(tokens).shape == (tokens, 1)
    assert len(made) < 10
    assert sum(made) < 2 * 2 * 5000


def test_a_scale_per_token_stays_what_it_is(generator, scratch, monkeypatch):
    seen, product = [], torch._scaled_mm
    monkeypatch.setattr(torch, "_scaled_mm", lambda *a, **k: seen.append(k["scale_a"]) or product(*a, **k))
    x = inputs(40, generator, static=False)
    cuda.project(x, fp8(generator, static=False), scratch)
    assert torch.allclose(seen[0], x.float().abs().amax(1, keepdim=True) / 448)


def test_slices_of_a_large_step_share_them_too(generator, monkeypatch):
    monkeypatch.setattr(cuda, "SWIGLU_TOKENS", 30)
    made, ones = [], torch.ones
    weight = fp8(generator, static=True)
    space = cuda.Scratch(2 * N * K, CPU)
    monkeypatch.setattr(torch, "ones", lambda *a, **k: made.append(a) or ones(*a, **k))
    cuda.swiglu(inputs(70, generator, static=True), weight, space)
    assert made == [(30, 1)]
