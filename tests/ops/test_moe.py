"""ops/moe against one token and one expert at a time."""

from __future__ import annotations

import pytest
import torch

from engine.ops import moe
from engine.ops.linear import Budget, prepare
from engine.ops.moe import naive
from engine.weights.types import DenseWeight

HIDDEN, INTER = 24, 16


@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(4, 2, 1), (8, 3, 13), (5, 5, 4)])
def test_experts_equal_the_specification(experts, top_k, tokens, generator):
    gate_up = [torch.randn(2 * INTER, HIDDEN, generator=generator) * 0.3 for _ in range(experts)]
    down = [torch.randn(HIDDEN, INTER, generator=generator) * 0.3 for _ in range(experts)]
    x = torch.randn(tokens, HIDDEN, generator=generator)
    weights, ids = moe.route(torch.randn(tokens, experts, generator=generator), top_k)

    def operands(matrices):
        return [prepare(DenseWeight(m), torch.float32, Budget(0)) for m in matrices]

    actual = moe.experts(x, weights, ids, operands(gate_up), operands(down))
    torch.testing.assert_close(actual, naive.experts(x, weights, ids, gate_up, down), rtol=1e-5, atol=1e-5)


def test_routing_equals_the_specification_and_breaks_ties_by_lowest_id(generator):
    logits = torch.randint(-3, 3, (50, 16), generator=generator).bfloat16()
    weights, ids = moe.route(logits, 4)
    expected_weights, expected_ids = naive.route(logits, 4)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected_weights)
    torch.testing.assert_close(weights.sum(-1), torch.ones(50))


def test_experts_nobody_chose_are_not_read(generator):
    poisoned = torch.full((2 * INTER, HIDDEN), float("nan"))
    gate_up = [torch.randn(2 * INTER, HIDDEN, generator=generator), poisoned]
    down = [torch.randn(HIDDEN, INTER, generator=generator), torch.full((HIDDEN, INTER), float("nan"))]
    operands = [[prepare(DenseWeight(m), torch.float32, Budget(0)) for m in ms] for ms in (gate_up, down)]
    ids = torch.zeros(3, 1, dtype=torch.long)
    out = moe.experts(torch.randn(3, HIDDEN, generator=generator), torch.ones(3, 1), ids, *operands)
    assert bool(out.isfinite().all())


def test_shared_expert_is_gated(generator):
    routed, shared = torch.randn(2, 5, HIDDEN, generator=generator)
    gate = torch.randn(5, 1, generator=generator)
    torch.testing.assert_close(moe.combine(routed, shared, gate), naive.combine(routed, shared, gate))
