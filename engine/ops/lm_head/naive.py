"""Logits as one fp32 product over the dequantised weight."""

from __future__ import annotations

import torch
from torch import Tensor


def lm_head(hidden: Tensor, matrix: Tensor) -> Tensor:
    """hidden [rows, n], matrix [vocab_size, n] -> fp32 [rows, vocab_size], before any rounding."""
    return torch.einsum("rn,vn->rv", hidden.float(), matrix.float())
