"""Greedy ids on the device: one launch over bf16 logits; see kernel.cu."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels import library

VALUES_PER_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class ArgmaxWorkspace:
    """Zero before and after each launch; one launch at a time may use it."""

    best: Tensor
    """int64 [rows]."""
    arrived: Tensor
    """int32 [rows]."""


def workspace(rows: int, device: torch.device) -> ArgmaxWorkspace:
    return ArgmaxWorkspace(
        torch.zeros(rows, dtype=torch.int64, device=device), torch.zeros(rows, dtype=torch.int32, device=device)
    )


def argmax(logits: Tensor, out: Tensor, space: ArgmaxWorkspace, *, dependent: bool = False) -> Tensor:
    """bf16 [rows, vocab_size] -> `out`, int64 [rows]: the lowest id of a tie. vocab_size a multiple of 8."""
    rows, vocab_size = logits.shape
    if logits.dtype != torch.bfloat16 or vocab_size % 8 or not logits.is_contiguous():
        raise ValueError(f"argmax: found {logits.dtype} {list(logits.shape)}; expected bf16 [rows, a multiple of 8]")
    if out.dtype != torch.int64 or out.shape != (rows,) or space.best.numel() < rows:
        raise ValueError(
            f"argmax: found out {out.dtype} {list(out.shape)}; expected int64 [{rows}] and as much workspace"
        )
    blocks = -(-vocab_size // VALUES_PER_BLOCK)
    library.call(
        "engine_argmax", logits.device, logits, out, space.best, space.arrived, rows, vocab_size, blocks, int(dependent)
    )
    return out
