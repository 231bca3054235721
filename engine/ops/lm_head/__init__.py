"""Vocabulary logits of chosen rows.

Contract: `lm_head(hidden, operand)` with hidden [rows, hidden_size] after the final norm -> fp32 [rows,
vocab_size]. The product is rounded to the activation dtype first: vLLM and transformers compute bfloat16 logits,
and a wider result would break their ties differently.
"""

from __future__ import annotations

from torch import Tensor

from engine.ops.linear import Operand, linear

DEVICES = frozenset({"cpu", "cuda"})


def lm_head(hidden: Tensor, operand: Operand) -> Tensor:
    """[rows, hidden_size] -> fp32 [rows, vocab_size]."""
    return linear(hidden, operand).float()
