"""ops/w4a16 on a GPU against the dequantised weight in float64: epilogues, cuts, odd sizes, poisoned outputs."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.library import KernelError
from engine.kernels.skinny import Epilogue, Plan
from engine.ops.sample import cuda as sample_cuda
from engine.ops.w4a16 import cuda, pack
from engine.weights.types import Nvfp4Weight
from tests.ops import argmax_products
from tests.ops.poison import product_error, relative_error

pytestmark = pytest.mark.gpu

PRODUCT_ERROR = 2e-5
"""Codes times block scales times bf16 are exact; what is left is fp32 accumulation and one fp32 scale."""
BF16_ERROR = 2.5e-3
"""One rounding to bf16: 2^-9 / sqrt(3) in the mean square, doubled."""
SWIGLU_ERROR = 6e-3
"""Gate, up, silu and product are each rounded."""

SHAPES = [(16, 256), (48, 512), (272, 1280), (1040, 2048), (5120, 5120), (512, 17408)]
CUTS = [Plan(1, 1), Plan(2, 3), Plan(9, 7), Plan(1, 5, 3), Plan(2, 4, 5, 3), Plan(3, 10, 1, 4), Plan(1, 1, 10, 49)]


def make(n, k, generator):
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda", generator=generator)
    bits = torch.randint(0, 0x7F, (n, k // 16), dtype=torch.uint8, device="cuda", generator=generator)
    bits[torch.rand(bits.shape, device="cuda", generator=generator) < 0.02] = 0
    row_scale = torch.rand(n, device="cuda", generator=generator) * 1e-3 + 1e-4
    return Nvfp4Weight(packed, bits.view(torch.float8_e4m3fn), row_scale)


def make_x(m, k, generator):
    return torch.randn(m, k, device="cuda", generator=generator).bfloat16()


def product(x, weight):
    return x.double() @ weight.dequantize(torch.float32).double().T


@pytest.mark.parametrize("m", [1, 2, 7, 8, 9, 16, 17, 27, 32])
@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.usefixtures("poison")
def test_partial_planes_sum_to_the_product(m, n, k, cuda_generator):
    weight, x = make(n, k, cuda_generator), make_x(m, k, cuda_generator)
    out = cuda.w4a16_partial(x, pack.pack(weight.packed, weight.block_scale), weight.row_scale)
    assert product_error(out.sum(0), x, weight.dequantize(torch.float32)) < PRODUCT_ERROR


@pytest.mark.parametrize("m", [1, 8, 13, 32])
@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.usefixtures("poison")
def test_bf16(m, n, k, cuda_generator):
    weight, x = make(n, k, cuda_generator), make_x(m, k, cuda_generator)
    out = cuda.w4a16(x, pack.pack(weight.packed, weight.block_scale), weight.row_scale)
    assert out.dtype == torch.bfloat16
    assert relative_error(out, product(x, weight)) < BF16_ERROR


@pytest.mark.parametrize("m", [1, 8, 13, 32])
@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.usefixtures("poison")
def test_swiglu_of_interleaved_rows(m, n, k, cuda_generator):
    gate, up, x = make(n, k, cuda_generator), make(n, k, cuda_generator), make_x(m, k, cuda_generator)
    packed = pack.interleave(gate.packed, up.packed)
    block_scale = pack.interleave(gate.block_scale, up.block_scale)
    out = cuda.w4a16_swiglu(x, pack.pack(packed, block_scale), pack.interleave(gate.row_scale, up.row_scale))
    expected = torch.nn.functional.silu(product(x, gate)) * product(x, up)
    assert relative_error(out, expected) < SWIGLU_ERROR


@pytest.mark.parametrize("m", [3, 11, 30])
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.usefixtures("poison")
def test_every_cut_gives_the_product(m, cut, cuda_generator):
    weight, x = make(784, 2560, cuda_generator), make_x(m, 2560, cuda_generator)
    out = torch.empty(cut.slices, m, 784, device="cuda")
    units = pack.pack(weight.packed, weight.block_scale)
    cuda.run(x, units, weight.row_scale, out, cut, Epilogue.PARTIAL, False)
    assert product_error(out.sum(0), x, weight.dequantize(torch.float32)) < PRODUCT_ERROR


@pytest.mark.parametrize("cut", [Plan(0, 1), Plan(11, 1), Plan(1, 50), Plan(1, 1, 11), Plan(1, 7, 1, 8)], ids=str)
def test_cuts_outside_the_contract_are_refused(cut, cuda_generator):
    weight, x = make(784, 2560, cuda_generator), make_x(3, 2560, cuda_generator)
    out = torch.full((12, 3, 784), float("nan"), device="cuda")
    with pytest.raises(KernelError, match="invalid value"):
        cuda.run(x, pack.pack(weight.packed, weight.block_scale), weight.row_scale, out, cut, Epilogue.PARTIAL, False)
    assert bool(out.isnan().all())


def test_more_tokens_than_shared_memory_holds_are_refused(cuda_generator):
    weight, x = make(16, 17408, cuda_generator), make_x(32, 17408, cuda_generator)
    out = torch.empty(1, 32, 16, device="cuda")
    units = pack.pack(weight.packed, weight.block_scale)
    with pytest.raises(KernelError, match="more shared memory than a block has"):
        cuda.run(x, units, weight.row_scale, out, Plan(1, 1), Epilogue.PARTIAL, False)


def test_a_token_does_not_depend_on_its_neighbours(cuda_generator):
    weight, x = make(1040, 2048, cuda_generator), make_x(8, 2048, cuda_generator)
    units = pack.pack(weight.packed, weight.block_scale)
    together = cuda.w4a16(x, units, weight.row_scale)
    for i in range(8):
        assert torch.equal(cuda.w4a16(x[i : i + 1].contiguous(), units, weight.row_scale)[0], together[i])


def test_repeated_dependent_launches_in_a_graph_agree(cuda_generator):
    weight, x = make(5120, 5120, cuda_generator), make_x(4, 5120, cuda_generator)
    units = pack.pack(weight.packed, weight.block_scale)
    expected = cuda.w4a16(x, units, weight.row_scale)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [cuda.w4a16(x, units, weight.row_scale, True) for _ in range(20)]
    graph.replay()
    assert all(torch.equal(out, expected) for out in outs)


def test_one_wrong_block_scale_is_seen(cuda_generator):
    weight, x = make(272, 1280, cuda_generator), make_x(8, 1280, cuda_generator)
    scale = weight.block_scale.view(torch.uint8).clone()
    scale[100, 33] = 0x50 if scale[100, 33] < 0x48 else 0x10
    out = cuda.w4a16_partial(x, pack.pack(weight.packed, scale.view(torch.float8_e4m3fn)), weight.row_scale)
    assert product_error(out.sum(0), x, weight.dequantize(torch.float32)) > 100 * PRODUCT_ERROR


def test_operands_that_do_not_fit_are_named(cuda_generator):
    weight, x = make(48, 512, cuda_generator), make_x(2, 512, cuda_generator)
    units = pack.pack(weight.packed, weight.block_scale)
    with pytest.raises(ValueError, match=r"float32.*expected contiguous bfloat16"):
        cuda.w4a16(x.float(), units, weight.row_scale)
    with pytest.raises(ValueError, match="for k 256"):
        cuda.w4a16(x[:, :256].contiguous(), units, weight.row_scale)
    with pytest.raises(ValueError, match="found m 33"):
        cuda.w4a16(make_x(33, 512, cuda_generator), units, weight.row_scale)


VOCABULARY = 248320


def argmax(weight, x, launches=1):
    """The launch over poisoned ids -> (logits, ids, logits of the product alone); a clean workspace behind each."""
    units, ids = pack.pack(weight.packed, weight.block_scale), torch.full((len(x),), -1, device="cuda")
    space = sample_cuda.workspace(32, x.device)
    for _ in range(launches):
        logits = cuda.w4a16_argmax(x, units, weight.row_scale, ids.fill_(-1), space)
        assert argmax_products.clean(space)
    return logits, ids, cuda.w4a16(x, units, weight.row_scale)


@pytest.mark.parametrize("kind", argmax_products.KINDS)
@pytest.mark.parametrize("n", [16, 272, 5120, VOCABULARY])
@pytest.mark.parametrize("m", [1, 8, 9, 17, 32])
@pytest.mark.usefixtures("poison")
def test_argmax(m, n, kind, cuda_generator):
    weight, x = argmax_products.make(kind, m, n, 512, cuda_generator)
    argmax_products.check(*argmax(weight, x))


@pytest.mark.parametrize("m", range(1, 33))
@pytest.mark.usefixtures("poison")
def test_argmax_of_every_batch(m, cuda_generator):
    """The 27B's hidden size: from some batch on in phases and windows."""
    weight, x = argmax_products.make("five rows" if m % 2 else "random", m, 20480, 5120, cuda_generator)
    argmax_products.check(*argmax(weight, x))


def test_argmax_launch_after_launch_in_a_graph(cuda_generator):
    """Dependent launches over one workspace, replayed: blocks arrive in another order each time."""
    weight, x = argmax_products.make("five rows", 32, VOCABULARY, 512, cuda_generator)
    _, first, plain = argmax(weight, x, launches=3)
    units, space = pack.pack(weight.packed, weight.block_scale), sample_cuda.workspace(32, x.device)
    ids, graph = torch.full((20, 32), -1, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = [cuda.w4a16_argmax(x, units, weight.row_scale, ids[i], space, dependent=i > 0) for i in range(20)]
    for _ in range(10):
        ids.fill_(-1)
        graph.replay()
        torch.cuda.synchronize()
        assert bool((ids == first).all())
        assert torch.equal(made[-1].view(torch.int16), plain.view(torch.int16))
    assert argmax_products.clean(space)
