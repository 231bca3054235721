"""Products of one input in several schemes: each as it is alone, in its own columns; bfloat16 weights by a library.

On a CPU the kernels are torch stand-ins, on a GPU they are themselves.
"""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch.nn import functional as F

from engine.ops.linear import cuda
from engine.ops.linear.quantize import quantize_per_tensor
from engine.weights.types import DenseWeight, Fp8Weight, Nvfp4Weight, Weight
from tests.engine.models import kernels_on_cpu
from tests.ops.poison import relative_error

K = 512
TOKENS = [1, 5, 32, 33, 70]
BF16_ERROR = 3e-3
"""As in test_prefill_cuda: one rounding of the result, and beyond 32 tokens one of each NVFP4 weight."""
SWIGLU_ERROR = 6e-3
KINDS = ["four", "static", "per token", "dense"]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def made(request, monkeypatch):
    """made(kind, n): a random weight, [n, K]."""
    if request.param == "cpu":
        kernels_on_cpu.install(monkeypatch)
    # Made here, since a CUDA generator needs its device.
    generator = torch.Generator(request.param).manual_seed(7)
    like = {"device": request.param, "generator": generator}

    def weight(kind: str, n: int) -> Weight:
        scale = torch.rand(n, **like) * 1e-3 + 1e-4
        match kind:
            case "four":
                bits = torch.randint(0x30, 0x40, (n, K // 16), dtype=torch.uint8, **like)
                packed = torch.randint(0, 256, (n, K // 2), dtype=torch.uint8, **like)
                return Nvfp4Weight(packed, bits.view(torch.float8_e4m3fn), scale)
            case "dense":
                return DenseWeight((torch.randn(n, K, **like) * 0.02).bfloat16())
        codes = (torch.randn(n, K, **like) * 50).clamp(-448, 448).to(torch.float8_e4m3fn)
        return Fp8Weight(codes, scale, torch.tensor(0.02, device=request.param) if kind == "static" else None)

    weight.device, weight.like = torch.device(request.param), like
    return weight


def inputs(made, m):
    """(x, its E4M3 codes under the static scale)."""
    x = torch.randn(m, K, **made.like).bfloat16()
    return x, quantize_per_tensor(x, torch.tensor(0.02, device=made.device)).to(torch.float8_e4m3fn)


def scratch(made):
    return cuda.Scratch(2 * 96 * K, made.device)


@pytest.mark.parametrize("m", TOKENS)
@pytest.mark.parametrize(
    "kinds", [*permutations(KINDS, 2), ("static", "four", "static"), ("dense", "static", "static")]
)
def test_each_product_is_in_its_columns(made, kinds, m):
    shards = [made(kind, n) for kind, n in zip(kinds, (48, 16, 32)[: len(kinds)], strict=True)]
    weight, space, (x, codes) = cuda.pack_together(shards), scratch(made), inputs(made, m)
    assert isinstance(weight, cuda.SideBySide)
    inputs_of = [codes if kind == "static" else x for kind in kinds]
    alone = [cuda.project(given, cuda.pack(s), space) for given, s in zip(inputs_of, shards, strict=True)]
    for given in (codes, None):
        out = cuda.project(x, weight, space, given)
        assert out.shape == (m, sum(s.shape[0] for s in shards))
        assert out.is_contiguous()
        assert relative_error(out, torch.cat(alone, 1)) < BF16_ERROR / 10


@pytest.mark.parametrize("m", TOKENS)
def test_codes_that_a_norm_left_are_not_made_again(made, m):
    weight, (x, codes) = cuda.pack_together([made("static", 48), made("per token", 16)]), inputs(made, m)
    static, dynamic = cuda.project(x, weight, scratch(made), torch.zeros_like(codes)).split([48, 16], 1)
    assert not static.any()
    assert dynamic.any()


@pytest.mark.parametrize("m", TOKENS)
@pytest.mark.parametrize("kinds", [*permutations(KINDS, 2), ("dense", "dense")])
def test_swiglu_of_two_schemes(made, kinds, m, monkeypatch):
    monkeypatch.setattr(cuda, "SWIGLU_TOKENS", 48)
    gate, up = (made(kind, 32) for kind in kinds)
    space, (x, _) = scratch(made), inputs(made, m)
    a, b = (cuda.project(x, cuda.pack(weight), space) for weight in (gate, up))
    out = cuda.swiglu(x, cuda.pack_gate_up(gate, up), space)
    assert out.shape == (m, 32)
    assert relative_error(out, F.silu(a.double()) * b.double()) < SWIGLU_ERROR


@pytest.mark.parametrize("m", TOKENS)
def test_a_bfloat16_weight(made, m):
    weight, (x, _) = made("dense", 48), inputs(made, m)
    packed, space = cuda.pack(weight), scratch(made)
    assert packed.rows is weight.weight
    expected = x.double() @ weight.weight.double().T
    out, planes = cuda.project(x, packed, space), cuda.planes(x, packed, space)
    assert (out.dtype, planes.dtype, planes.shape) == (torch.bfloat16, torch.float32, (1, m, 48))
    assert relative_error(out, expected) < BF16_ERROR
    assert relative_error(planes[0], expected) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("made", ["cuda"], indirect=True)
def test_in_a_graph_no_replay_allocates(made):
    """Of the largest step that streams, after one launch by launch, as the decoding graphs are captured."""
    weights = [made(kind, 32) for kind in KINDS]
    weight, space, (x, codes) = cuda.pack_together(weights), scratch(made), inputs(made, 32)
    expected = cuda.project(x, weight, space, codes)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = cuda.project(x, weight, space, codes)
    out.fill_(float("nan"))
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert torch.equal(out, expected)
