"""Which class runs which architecture."""

from __future__ import annotations

from engine.models.layers import Source
from engine.models.qwen3_5 import Qwen3_5ForCausalLM
from engine.models.qwen3_5_moe import Qwen3_5MoeForCausalLM


def build_model(source: Source, max_positions: int) -> Qwen3_5ForCausalLM:
    """The model that source.config describes; it can run positions 0..max_positions - 1."""
    return (Qwen3_5MoeForCausalLM if source.config.is_moe else Qwen3_5ForCausalLM)(source, max_positions)
