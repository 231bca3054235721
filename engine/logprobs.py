"""Log-probabilities as the API reports them: of the sampled token, its rank, and the most probable alternatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.batch import Segment, TokenLogprobs

ROWS_AT_ONCE = 64
"""Prompt positions per lm_head call: their logits over 248,320 ids are 64 MB in fp32."""


def token_logprobs(logits: Tensor, token_ids: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """One entry per row of logits fp32 [rows, vocab_size], taken before temperature and penalties.

    counts[i] says how many alternatives row i lists: 0 none, -1 the whole vocabulary. Order is by probability, and by
    id among equals; `rank` follows the same order.
    """
    logprobs = logits.log_softmax(-1)
    ids = torch.tensor(token_ids, device=logits.device)[:, None]
    chosen = logprobs.gather(1, ids)
    vocabulary = torch.arange(logprobs.shape[1], device=logits.device)
    ahead = (logprobs > chosen) | ((logprobs == chosen) & (vocabulary < ids))
    ranks = (ahead.sum(-1) + 1).tolist()
    values = chosen[:, 0].tolist()
    return [
        TokenLogprobs(token, value, rank, _top(row, count))
        for token, value, rank, row, count in zip(token_ids, values, ranks, logprobs, counts, strict=True)
    ]


def _top(row: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` largest entries of row [vocab_size] as (id, value)."""
    if count == 0:
        return ()
    count = row.numel() if count < 0 else min(count, row.numel())
    # topk does not promise an order among equals, so it only finds the threshold; nonzero then lists ids in order.
    threshold = row.topk(count).values[-1]
    candidates = (row >= threshold).nonzero()[:, 0]
    values, order = row[candidates].sort(dim=0, descending=True, stable=True)
    return tuple(zip(candidates[order[:count]].tolist(), values[:count].tolist(), strict=True))


class PromptLogprobs:
    """Log-probs of prompt ids, chunk by chunk. An id's log-prob comes from the hidden state before it, so the last
    state of a chunk is kept, by state slot, for the next one.
    """

    def __init__(self, logits: Callable[[Tensor], Tensor]) -> None:
        self._logits = logits
        self._last: dict[int, Tensor] = {}

    def take(self, segment: Segment, hidden: Tensor) -> tuple[TokenLogprobs | None, ...]:
        """One entry per id of the segment that is part of the prompt; hidden [tokens, hidden] are its rows."""
        ids = segment.token_ids[: max(0, len(segment.prompt_ids) - segment.position)]
        before = self._last.pop(segment.state_slot, None)
        if segment.position + len(segment.token_ids) < len(segment.prompt_ids):
            self._last[segment.state_slot] = hidden[-1:].clone()
        if segment.position == 0:
            return (None, *self._entries(segment, ids[1:], hidden))
        if not ids:
            return ()
        if before is None:
            raise ValueError(
                f"request {segment.request_id}: prompt log-probs from token {segment.position} on, but the chunk "
                "before it never ran in this state slot; a prompt is run from its start"
            )
        return tuple(self._entries(segment, ids, torch.cat((before, hidden))))

    def _entries(self, segment: Segment, ids: Sequence[int], rows: Tensor) -> list[TokenLogprobs]:
        """rows[i] is the hidden state before ids[i]."""
        count = segment.params.prompt_logprobs or 0
        entries: list[TokenLogprobs] = []
        for start in range(0, len(ids), ROWS_AT_ONCE):
            part = ids[start : start + ROWS_AT_ONCE]
            logits = self._logits(rows[start : start + len(part)])
            entries += token_logprobs(logits, part, [count] * len(part))
        return entries
