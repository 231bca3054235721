"""The norm with router and routing in one launch, on a GPU: bit for bit what two launches leave."""

from __future__ import annotations

import pytest
import torch

from engine.ops.norm.cuda import add_norm_route
from tests.ops.routed_norms import EPS, KINDS, compare, inputs, same

pytestmark = pytest.mark.gpu


@pytest.fixture
def arrived():
    return torch.zeros(1, dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [1, 2, 8, 9, 16, 17, 31, 32])
@pytest.mark.parametrize(
    ("n", "experts", "top_k"), [(2048, 256, 8), (264, 33, 3), (8, 8, 8), (5120, 256, 8), (2048, 255, 15)]
)
@pytest.mark.usefixtures("poison")
def test_as_two_launches(kind, m, n, experts, top_k, arrived, cuda_generator):
    compare(inputs(kind, m, n, experts, 9, cuda_generator), top_k, arrived)


@pytest.mark.parametrize("m", range(1, 33))
@pytest.mark.usefixtures("poison")
def test_every_batch(m, arrived, cuda_generator):
    for kind in ("random", "ties", "near"):
        compare(inputs(kind, m, 2048, 256, 4, cuda_generator), 8, arrived)


@pytest.mark.parametrize("m", [1, 3, 8, 32])
def test_a_thousand_launches_agree(m, arrived, cuda_generator):
    """A logit that its block had not written yet, or one read from before, would show as another expert."""
    tensors = [inputs(kind, m, 2048, 256, 9, cuda_generator) for kind in ("random", "near", "ties")]
    expected = [compare(t, 8, arrived) for t in tensors]
    made = [add_norm_route(*t[:3], EPS, t[3], 8, arrived, dependent=True)[1] for _ in range(400) for t in tensors]
    for i, how in enumerate(made):
        same(how, expected[i % len(tensors)])
    assert arrived.tolist() == [0]


@pytest.mark.parametrize("m", [1, 8, 32])
def test_dependent_launches_in_a_graph_agree(m, arrived, cuda_generator):
    """Twenty in a row on one workspace, replayed over outputs that are full of rubbish."""
    tensors = [inputs(kind, m, 2048, 256, 9, cuda_generator) for kind in ("random", "one", "ties", "alike")]
    expected = [compare(t, 8, arrived) for t in tensors]

    def chain():
        return [add_norm_route(*t[:3], EPS, t[3], 8, arrived, dependent=True) for _ in range(5) for t in tensors]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        chain()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            outputs = chain()
    for _ in range(20):
        for normed, how in outputs:
            normed.small.fill_(float("nan"))
            for tensor in how.tensors:
                tensor.view(torch.uint8).fill_(0xFF)
        graph.replay()
        torch.cuda.synchronize()
        for i, (_, how) in enumerate(outputs):
            same(how, expected[i % len(tensors)])
    assert arrived.tolist() == [0]
