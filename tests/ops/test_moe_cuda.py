"""ops/moe on a GPU: routing against its definition, products against dequantised weights in float64."""

from __future__ import annotations

import pytest
import torch

from engine.ops.moe import cuda
from engine.weights.types import Nvfp4Weight
from tests.ops.poison import relative_error
from tests.ops.test_moe_grouping import KINDS, check, logits_for

pytestmark = pytest.mark.gpu

SWIGLU_ERROR = 6e-3
"""Gate, up, silu and product are each rounded to bfloat16."""
WEIGHTED_ERROR = 2.5e-3
"""One rounding to bfloat16: 2^-9 / sqrt(3) in the mean square, doubled."""
EXPERTS, TOP_K = 32, 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 31, 32])
@pytest.mark.parametrize(("experts", "top_k"), [(256, 8), (8, 8), (33, 3)])
@pytest.mark.usefixtures("poison")
def test_routing(kind, tokens, experts, top_k):
    logits = logits_for(kind, tokens, experts, seed=tokens)
    check(cuda.routing(logits.cuda(), top_k), logits, top_k)


@pytest.mark.parametrize("tokens", [33, 200, 512])
def test_routing_of_many(tokens):
    logits = logits_for("random", tokens, 256, seed=tokens)
    check(cuda.routing(logits.cuda(), 8), logits, 8)


def make(n, k, generator):
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda", generator=generator)
    bits = torch.randint(0, 0x7F, (n, k // 16), dtype=torch.uint8, device="cuda", generator=generator)
    scale = torch.rand(n, device="cuda", generator=generator) * 1e-3 + 1e-4
    return Nvfp4Weight(packed, bits.view(torch.float8_e4m3fn), scale)


def stack(n, k, generator):
    return [make(n, k, generator) for _ in range(EXPERTS + 1)]


def matrix(weight):
    return weight.dequantize(torch.float32).double()


def experts_of(how):
    """[tokens, slots]: the expert of each pair."""
    shared = torch.full((how.tokens, 1), EXPERTS, device="cuda")
    return torch.cat((how.ids, shared), 1).tolist()


ROUTES = ["random", "alike", "one", "ties"]
SIZES = [1, 2, 8, 9, 17, 32, 33, 100, 257]


@pytest.mark.parametrize("kind", ROUTES)
@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize(("n", "k"), [(16, 256), (48, 512), (512, 2048)])
@pytest.mark.usefixtures("poison")
def test_swiglu(kind, tokens, n, k, cuda_generator):
    gate, up = stack(n, k, cuda_generator), stack(n, k, cuda_generator)
    x = torch.randn(tokens, k, device="cuda", generator=cuda_generator).bfloat16()
    how = cuda.routing(logits_for(kind, tokens, EXPERTS, tokens).cuda(), TOP_K)
    out = cuda.swiglu(x, cuda.pack_gate_up(gate, up), how).view(tokens, how.slots, n)
    gates, ups = [matrix(w) for w in gate], [matrix(w) for w in up]
    expected = torch.stack(
        [
            torch.stack(
                [torch.nn.functional.silu(x[t].double() @ gates[e].T) * (x[t].double() @ ups[e].T) for e in row]
            )
            for t, row in enumerate(experts_of(how))
        ]
    )
    assert relative_error(out, expected) < SWIGLU_ERROR


@pytest.mark.parametrize("kind", ROUTES)
@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize(("n", "k"), [(16, 256), (272, 512), (2048, 512)])
@pytest.mark.usefixtures("poison")
def test_weighted_planes(kind, tokens, n, k, cuda_generator):
    down = stack(n, k, cuda_generator)
    how = cuda.routing(logits_for(kind, tokens, EXPERTS, tokens).cuda(), TOP_K)
    x = torch.randn(tokens * how.slots, k, device="cuda", generator=cuda_generator).bfloat16()
    planes = cuda.weighted_planes(x, cuda.pack(down), how)
    assert planes.shape == (how.slots, tokens, n)
    matrices, rows = [matrix(w) for w in down], x.double().view(tokens, how.slots, k)
    weights = how.weights.double().view(tokens, how.slots)
    for t, chosen in enumerate(experts_of(how)):
        for slot, e in enumerate(chosen):
            expected = rows[t, slot] @ matrices[e].T * weights[t, slot]
            assert relative_error(planes[slot, t], expected) < WEIGHTED_ERROR, (t, slot)


def test_an_expert_nobody_chose_is_not_read(cuda_generator):
    """NaN in it changes nothing."""
    down = stack(256, 512, cuda_generator)
    how = cuda.routing(logits_for("alike", 5, EXPERTS, 1).cuda(), TOP_K)
    x = torch.randn(5 * how.slots, 512, device="cuda", generator=cuda_generator).bfloat16()
    before = cuda.weighted_planes(x, cuda.pack(down), how)
    absent = next(e for e in range(EXPERTS) if e not in how.ids[0].tolist())
    down[absent].row_scale.fill_(float("nan"))
    assert torch.equal(cuda.weighted_planes(x, cuda.pack(down), how), before)


def test_a_token_does_not_depend_on_its_neighbours(cuda_generator):
    gate, up, down = (stack(n, k, cuda_generator) for n, k in ((512, 2048), (512, 2048), (2048, 512)))
    gate_up, down = cuda.pack_gate_up(gate, up), cuda.pack(down)
    logits = logits_for("random", 32, EXPERTS, 5).cuda()
    x = torch.randn(32, 2048, device="cuda", generator=cuda_generator).bfloat16()

    def run(rows):
        how = cuda.routing(logits[rows].contiguous(), TOP_K)
        return cuda.weighted_planes(cuda.swiglu(x[rows].contiguous(), gate_up, how), down, how)

    together = run(slice(0, 32))
    for rows in (slice(0, 1), slice(7, 9), slice(20, 32)):
        error = relative_error(run(rows), together[:, rows].double())
        assert error < 1e-2  # sums are cut elsewhere: a last bit of fp32, and of bfloat16 behind it


def test_repeated_dependent_launches_in_a_graph_agree(cuda_generator):
    gate, up, down = (stack(n, k, cuda_generator) for n, k in ((512, 2048), (512, 2048), (2048, 512)))
    gate_up, down = cuda.pack_gate_up(gate, up), cuda.pack(down)
    logits = logits_for("random", 8, EXPERTS, 6).cuda()
    x = torch.randn(8, 2048, device="cuda", generator=cuda_generator).bfloat16()

    def chain():
        how = cuda.routing(logits, TOP_K, dependent=True)
        return cuda.weighted_planes(cuda.swiglu(x, gate_up, how, dependent=True), down, how, dependent=True)

    how = cuda.routing(logits, TOP_K)
    expected = cuda.weighted_planes(cuda.swiglu(x, gate_up, how), down, how)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        chain()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            outputs = [chain() for _ in range(20)]
    graph.replay()
    torch.cuda.synchronize()
    for out in outputs:
        assert torch.equal(out, expected)
