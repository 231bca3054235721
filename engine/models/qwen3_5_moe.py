"""Qwen3.5 and 3.6, mixture of experts: the dense model with another feed-forward."""

from __future__ import annotations

from torch import Tensor

from engine.models.layers import MLP, Linear, Source, operand
from engine.models.qwen3_5 import Qwen3_5ForCausalLM
from engine.ops import moe


class SparseMoeBlock:
    """Routed experts plus one shared expert behind a scalar gate."""

    def __init__(self, source: Source, name: str) -> None:
        config = source.config
        self.top_k = config.num_experts_per_tok
        self.router = Linear(source, f"{name}.gate", f"{name}.shared_expert_gate")
        experts = [f"{name}.experts.{e}" for e in range(config.num_experts)]
        self.gate_up_proj = [operand(source, f"{e}.gate_proj", f"{e}.up_proj") for e in experts]
        self.down_proj = [operand(source, f"{e}.down_proj") for e in experts]
        self.shared_expert = MLP(source, f"{name}.shared_expert")

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> the same."""
        logits = self.router(x)
        weights, ids = moe.route(logits[:, :-1], self.top_k)
        routed = moe.experts(x, weights, ids, self.gate_up_proj, self.down_proj)
        return moe.combine(routed, self.shared_expert(x), logits[:, -1:])


class Qwen3_5MoeForCausalLM(Qwen3_5ForCausalLM):
    """The text model with experts in every layer."""

    mlp = SparseMoeBlock
