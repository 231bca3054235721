"""ops/norm's kernel against the torch reference: planes, residual, quantisation, the small product."""

from __future__ import annotations

import pytest
import torch

from engine.ops import norm
from engine.ops.linear.quantize import quantize_per_tensor
from engine.ops.moe.cuda import WeightedPairs
from engine.ops.norm import cuda
from tests.ops.embedded_norms import compare
from tests.ops.paired_norms import both, pairs_of, products, same
from tests.ops.poison import relative_error

pytestmark = pytest.mark.gpu

EPS = 1e-6


def make(m, n, slices, generator):
    planes = torch.randn(slices, m, n, device="cuda", generator=generator) if slices else None
    residual = torch.randn(m, n, device="cuda", generator=generator).bfloat16()
    scale = torch.rand(n, device="cuda", generator=generator) + 0.5
    return planes, residual, scale


def reference(planes, residual, scale):
    if planes is None:
        return norm.rms_norm(residual, scale, EPS), None
    return norm.add_rms_norm(planes.sum(0).bfloat16(), residual, scale, EPS)


@pytest.mark.parametrize("m", [1, 3, 32])
@pytest.mark.parametrize("n", [8, 264, 2048, 5120])
@pytest.mark.parametrize("slices", [0, 1, 2, 5])
@pytest.mark.usefixtures("poison")
def test_add_norm_and_quantise(m, n, slices, cuda_generator):
    planes, residual, scale = make(m, n, slices, cuda_generator)
    input_scale = torch.tensor(0.013, device="cuda")
    got = cuda.add_norm(planes, residual, scale, EPS, input_scale=input_scale)
    expected, new_residual = reference(planes, residual, scale)
    if slices < 3:  # further planes are summed in another order than torch's
        assert new_residual is None or torch.equal(got.residual, new_residual)
    else:
        assert relative_error(got.residual, new_residual) < 1e-3
    assert relative_error(got.out, expected) < 1e-3
    codes = quantize_per_tensor(got.out, input_scale)
    assert torch.equal(got.quantised.float(), codes)


@pytest.mark.parametrize("m", [1, 4, 5, 32])
@pytest.mark.parametrize(("n", "rows"), [(5120, 96), (2048, 64), (264, 3)])
@pytest.mark.usefixtures("poison")
def test_small_product(m, n, rows, cuda_generator):
    planes, residual, scale = make(m, n, 2, cuda_generator)
    weight = torch.randn(rows, n, device="cuda", generator=cuda_generator).bfloat16()
    got = cuda.add_norm(planes, residual, scale, EPS, small_weight=weight)
    expected, new_residual = reference(planes, residual, scale)
    assert torch.equal(got.residual, new_residual)
    assert relative_error(got.out, expected) < 1e-3
    assert relative_error(got.small, got.out.double() @ weight.double().T) < 2.5e-3


@pytest.mark.parametrize("m", [1, 4, 32, 33, 500])
@pytest.mark.parametrize(("n", "rows"), [(5120, 0), (5120, 96), (2048, 64), (8, 0), (264, 3)])
@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.usefixtures("poison")
def test_rows_of_the_embedding(m, n, rows, quantised, cuda_generator):
    """Bit for bit as over rows that torch looked up."""
    compare(m, n, rows, 1000, cuda_generator, quantised=quantised)


def test_rows_of_an_embedding_of_more_than_two_gib(cuda_generator):
    """The 27B's has 248320 x 5120 values: the last row's offset does not fit in 31 bits."""
    compare(3, 5120, 96, 248320, cuda_generator, quantised=True, ids=[248319, 209716, 0])


@pytest.mark.parametrize("m", [1, 33, 70, 500])
@pytest.mark.parametrize("n", [8, 264, 2048, 5120])
@pytest.mark.parametrize("slots", [2, 3, 8, 9, 16])
@pytest.mark.usefixtures("poison")
def test_pairs(m, n, slots, cuda_generator):
    """Bit for bit as of planes of the products: nothing is fused."""
    pairs = pairs_of(m, n, slots, cuda_generator)
    assert same(*both(pairs, products(pairs, m), cuda_generator, quantised=m % 2 == 0))


def test_pairs_whose_offset_does_not_fit_in_31_bits(cuda_generator):
    """The last tokens' of 26,300 with 16 slots of 5,120 columns."""
    m, n, slots = 26300, 5120, 16
    like = {"device": "cuda", "generator": cuda_generator}
    pairs = WeightedPairs(torch.randn(m * slots, n, dtype=torch.bfloat16, **like), torch.rand(m * slots, **like))
    residual, scale = torch.randn(m, n, dtype=torch.bfloat16, **like), torch.rand(n, **like) + 0.5
    made = cuda.add_norm(pairs, residual, scale, EPS)
    last = WeightedPairs(pairs.values[-3 * slots :], pairs.weights[-3 * slots :])
    expected = cuda.add_norm(products(last, 3), residual[-3:], scale, EPS)
    assert torch.equal(made.residual[-3:], expected.residual)
    assert torch.equal(made.out[-3:], expected.out)


@pytest.mark.parametrize("m", [1, 33, 500])
@pytest.mark.parametrize("n", [8, 264, 2048, 5120])
@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.usefixtures("poison")
def test_one_product_in_bf16(m, n, quantised, cuda_generator):
    x = torch.randn(1, m, n, device="cuda", generator=cuda_generator).bfloat16()
    assert same(*both(x, x.float(), cuda_generator, quantised=quantised))


def test_ids_written_by_the_launch_before(cuda_generator):
    """As a step whose ids the one before left on the device; each replay of the graph reads them anew."""
    table = torch.randn(512, 2048, device="cuda", generator=cuda_generator).bfloat16()
    scale = torch.rand(2048, device="cuda", generator=cuda_generator) + 0.5
    ids, kept = (torch.zeros(8, dtype=torch.int64, device="cuda") for _ in range(2))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        cuda.add_norm(None, table, scale, EPS, token_ids=ids)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            ids.copy_(kept)
            made = cuda.add_norm(None, table, scale, EPS, token_ids=ids)
    for _ in range(50):
        kept.copy_(torch.randint(0, 512, (8,), device="cuda", generator=cuda_generator))
        graph.replay()
        assert torch.equal(made.residual, table[kept])
        assert torch.equal(made.out, cuda.add_norm(None, table[kept], scale, EPS).out)


def test_shapes_outside_the_contract_are_named(cuda_generator):
    planes, residual, scale = make(2, 5128, 1, cuda_generator)
    with pytest.raises(ValueError, match="at most 5120"):
        cuda.add_norm(planes, residual, scale, EPS)
    with pytest.raises(ValueError, match="planes"):
        cuda.add_norm(planes[:, :1, :512], residual[:, :512].contiguous(), scale[:512], EPS)
