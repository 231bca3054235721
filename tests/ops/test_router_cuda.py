"""The router's product with the routing behind it, on a GPU."""

from __future__ import annotations

import pytest
import torch

from engine.ops.moe import cuda
from tests.ops.routed_norms import KINDS, inputs, same
from tests.ops.test_router_emulated import compare

pytestmark = pytest.mark.gpu


@pytest.fixture
def arrived():
    return torch.zeros(1, dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [1, 9, 16, 17, 31, 32])
@pytest.mark.parametrize(("n", "experts", "top_k"), [(2048, 256, 8), (264, 33, 3), (8, 8, 8), (5120, 255, 15)])
@pytest.mark.usefixtures("poison")
def test_of_awkward_logits(kind, m, n, experts, top_k, arrived, cuda_generator):
    _, residual, _, router = inputs(kind, m, n, experts, 1, cuda_generator)
    compare((residual.float() / 4).bfloat16(), router, top_k, arrived)


@pytest.mark.parametrize("m", [13, 16, 32])
def test_a_thousand_dependent_launches_agree(m, arrived, cuda_generator):
    """A logit that its block had not written yet, or one read from before, would show as another expert."""
    kinds = [inputs(kind, m, 2048, 256, 1, cuda_generator) for kind in ("random", "near", "ties")]
    pairs = [((t[1].float() / 4).bfloat16(), t[3]) for t in kinds]
    expected = [compare(x, router, 8, arrived) for x, router in pairs]
    made = [cuda.router(x, router, 8, arrived, dependent=True)[1] for _ in range(400) for x, router in pairs]
    for i, how in enumerate(made):
        same(how, expected[i % len(pairs)])
    assert arrived.tolist() == [0]
