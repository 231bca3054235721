"""How many different experts a decoding step reads: what a mixture's bytes and its time depend on, beside the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch import Batch, Segment
from engine.models.fused import FusedForCausalLM
from engine.models.fused_moe import SparseMoeBlock
from engine.runner import ModelRunner
from engine.steps import build_step


@dataclass(frozen=True, slots=True)
class Distinct:
    """Of one step."""

    by_layer: tuple[int, ...]
    """Different experts that its tokens chose, the shared one among them."""
    experts: int
    """Of a layer, the shared one among them."""
    nbytes: int
    """Of what they hold, over all layers."""

    @property
    def mean(self) -> float:
        return sum(self.by_layer) / len(self.by_layer)

    def line(self, experts_us: float | None) -> str:
        """experts_us: of the experts' launches of a step, waits included; None where none was seen."""
        low, high = min(self.by_layer), max(self.by_layer)
        text = f"experts a layer: {self.mean:.1f} of {self.experts} distinct ({low} to {high})"
        if experts_us is None:
            return text
        return f"{text}, {experts_us / sum(self.by_layer):.2f} µs each, waits included"


def blocks(model: FusedForCausalLM) -> list[SparseMoeBlock]:
    return [layer.mlp for layer in model.layers if isinstance(layer.mlp, SparseMoeBlock)]


@torch.inference_mode()
def distinct(runner: ModelRunner, segments: Sequence[Segment]) -> Distinct | None:
    """Run the segments' tokens once more, eagerly, and count; None for a dense model. Caches are written as ever.

    Not read off a graph's own tensors: a graph reuses the memory of one layer's routing for the next.
    """
    model = runner.model
    assert isinstance(model, FusedForCausalLM)
    mixtures = blocks(model)
    if not mixtures:
        return None
    chosen: list[Tensor] = []
    try:
        for block in mixtures:
            block.observe = lambda how: chosen.append(how.ids)
        device = model.embed_tokens.device
        step = build_step(Batch(0, tuple(segments)), runner.caches.block_tokens, device, for_kernels=True)
        model.forward(step, runner.caches)
    finally:
        for block in mixtures:
            block.observe = None
    by_layer = tuple(len(set(ids.flatten().tolist())) + 1 for ids in chosen)
    experts = mixtures[0].router.shape[0]  # routed ones, and the shared one's gate
    read = sum(_held(block) // experts * count for block, count in zip(mixtures, by_layer, strict=True))
    return Distinct(by_layer, experts, read)


def _held(block: SparseMoeBlock) -> int:
    """Bytes of a layer's experts: in FP8, as late layers have them, nearly twice NVFP4's."""
    return sum(w.units.nbytes + w.row_scale.nbytes for w in (block.gate_up_proj, block.down_proj))
