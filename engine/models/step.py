"""Step: what a forward pass must know about its tokens, as tensors. The runner writes it, the layers read it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.ops.attention import Pages
from engine.ops.gdn import Chunks


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of one sequence that is not (only) decoding: a prefill chunk."""

    start: int
    """First row of the step's tokens."""
    end: int
    position: int
    """Position of the first token: how many tokens the caches hold."""
    state_slot: int
    kv_slots: Tensor
    """int64 [position + end - start]: flat KV slot of every token of the sequence so far, these included."""
    slot: Tensor | None = None
    """int64 [1]: stands for state_slot in a graph, which is captured for all of them."""

    @property
    def where(self) -> int | Tensor:
        """The state slot, for kernels."""
        return self.state_slot if self.slot is None else self.slot


@dataclass(frozen=True, slots=True)
class Step:
    """Rows 0..decodes are one token each of different sequences; the runs follow, without gaps."""

    token_ids: Tensor
    """int64 [tokens]. With fed_ids a negative one, -1 - r, stands for fed_ids[r]."""
    positions: Tensor
    """int64 [tokens]."""
    kv_slots: Tensor
    """int64 [tokens]: flat KV slot that receives each token's key and value; -1 for a row of padding."""
    decodes: int
    state_slots: Tensor
    """int64 [decodes]."""
    pages: Pages | None
    """Of the decoding sequences; None without any."""
    runs: tuple[Run, ...]
    block_table: Tensor | None = None
    """int64 [decodes, blocks] of the decoding sequences, padding arbitrary: what `pages` was made from, for kernels."""
    lengths: Tensor | None = None
    """int64 [decodes]: tokens of each decoding sequence, this one included."""
    chunks: Chunks | None = None
    """Of the runs; None without any."""
    fed_ids: Tensor | None = None
    """int64: what the step before sampled, still on the device."""
    live: Tensor | None = None
    """int32 [1]: of a step that is one run, padded for a graph, how many of its rows are not padding."""
