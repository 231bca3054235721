"""Synthetic routers permute one set of directions: docs/kernels.md says what that does to distinct experts a layer."""

from __future__ import annotations

import torch
from synthetic_weights import SHAPES, directions, key_of, normal, routed_embedding, router
from torch import Tensor

SHAPE, LAYERS = SHAPES["35b"], 40
CPU = torch.device("cpu")


def routers() -> Tensor:
    """fp32 [layers, experts, hidden]."""
    fill = router(SHAPE)
    size = SHAPE.experts * SHAPE.hidden
    flat = [fill(key_of(0, f"layers.{i}.mlp.gate.weight"), 0, size, CPU) for i in range(LAYERS)]
    return torch.stack(flat).view(LAYERS, SHAPE.experts, SHAPE.hidden).float()


def test_every_layer_reads_every_direction_once_in_an_order_of_its_own() -> None:
    read = (routers() @ directions(SHAPE.experts, SHAPE.hidden).T).argmax(-1)
    assert (read.sort(-1).values == torch.arange(SHAPE.experts)).all()
    assert len({tuple(order) for order in read.tolist()}) == LAYERS


def test_so_tokens_choose_as_many_distinct_experts_in_every_layer_and_not_the_same() -> None:
    """What layers add to the embedding does not cross the routers' margin, and is left out here."""
    rows = 32
    embedding = routed_embedding(SHAPE, normal(0, 1))(key_of(0, "embed"), 0, rows * SHAPE.hidden, CPU)
    logits = embedding.view(rows, SHAPE.hidden).float() @ routers().transpose(1, 2)
    chosen = [frozenset(layer.topk(SHAPE.top_k).indices.flatten().tolist()) for layer in logits]
    [count] = {len(experts) for experts in chosen}
    assert SHAPE.top_k < count < rows * SHAPE.top_k
    assert len(set(chosen)) > LAYERS // 2
