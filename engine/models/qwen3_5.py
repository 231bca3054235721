"""Qwen3.5 and 3.6, dense: every layer mixes tokens (Gated DeltaNet, or attention in each fourth), then applies SwiGLU.

    h = E[token];  per layer:  h += mixer(norm1(h));  h += mlp(norm2(h));  logits = lm_head(norm(h))

Pre-norm, no biases. Between layers the pair (x, residual) travels, so that each addition is part of the next norm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine import ranges
from engine.models.caches import AttentionCache, Caches, GdnCache
from engine.models.layers import MLP, Attention, GatedDeltaNet, RMSNorm, Source, operand
from engine.models.step import Step
from engine.ops import rope
from engine.ops.lm_head import lm_head
from engine.weights.types import DenseWeight


class DecoderLayer:
    """Mixer, then feed-forward, each behind its norm."""

    def __init__(self, source: Source, index: int, mlp: Callable[[Source, str], Callable[[Tensor], Tensor]]) -> None:
        name = f"layers.{index}"
        self.input_layernorm = RMSNorm(source, f"{name}.input_layernorm")
        if source.config.layer_types[index] == "linear_attention":
            self.linear_attn = GatedDeltaNet(source, f"{name}.linear_attn")
        else:
            self.self_attn = Attention(source, f"{name}.self_attn")
        self.post_attention_layernorm = RMSNorm(source, f"{name}.post_attention_layernorm")
        self.mlp = mlp(source, f"{name}.mlp")

    def __call__(
        self, x: Tensor, residual: Tensor, cos_sin: Tensor, step: Step, cache: AttentionCache | GdnCache
    ) -> tuple[Tensor, Tensor]:
        """x [tokens, hidden] is what the layer before made and has not yet added to residual -> (x, residual)."""
        x, residual = self.input_layernorm.add(x, residual)
        match cache:
            case GdnCache():
                x = self.linear_attn(x, step, cache)
            case AttentionCache():
                x = self.self_attn(x, cos_sin, step, cache)
        x, residual = self.post_attention_layernorm.add(x, residual)
        return self.mlp(x), residual


class Qwen3_5ForCausalLM:
    """The text model."""

    mlp: Callable[[Source, str], Callable[[Tensor], Tensor]] = MLP

    def __init__(self, source: Source, max_positions: int) -> None:
        """Builds from `source`; positions up to max_positions - 1 can be run."""
        config = source.config
        self.embed_tokens = source.weights.tensor("embed_tokens.weight")
        self.layers = [DecoderLayer(source, i, type(self).mlp) for i in range(config.num_hidden_layers)]
        self.grouped = ranges.grouped()
        self.norm = RMSNorm(source, "norm")
        if config.tie_word_embeddings:
            self.lm_head = source.operand(DenseWeight(self.embed_tokens))
        else:
            self.lm_head = operand(source, "lm_head")
        table = rope.table(max_positions, config.rotary_dim, config.rope_theta, source.dtype)
        self.cos_sin = table.to(self.embed_tokens.device)
        self.dtype = source.dtype

    def forward(self, step: Step, caches: Caches) -> Tensor:
        """Run the step's tokens and update the caches -> hidden states after the final norm, [tokens, hidden]."""
        x = torch.nn.functional.embedding(step.token_ids, self.embed_tokens).to(self.dtype)
        cos_sin = self.cos_sin[step.positions]
        residual = torch.zeros_like(x)
        for layer, cache in self.grouped(zip(self.layers, caches.layers, strict=True)):
            x, residual = layer(x, residual, cos_sin, step, cache)
        return self.norm.add(x, residual)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> fp32 [rows, vocab_size]."""
        return lm_head(hidden, self.lm_head)
