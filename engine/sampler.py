"""Sampler: logits of a step's sampled rows -> one id each, by every request's own parameters.

The order is vLLM's: log-probs from the raw logits; min_tokens mask and logit_bias; penalties; then the argmax where the
temperature is zero, else temperature, min_p, top_k, top_p and a draw.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch import Segment, TokenLogprobs
from engine.logprobs import token_logprobs
from engine.ops import sample
from engine.request import SamplingParams

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy, as in vLLM: dividing by them would overflow."""

ROWS_AT_ONCE = 8
"""Of a draw, a penalty or log-probs. Each holds a dozen copies of its rows' logits, 1 MB in fp32 of 248,320 ids."""

_MASK64 = 2**64 - 1


@dataclass(slots=True)
class _History:
    """What a penalised request has seen, kept between its steps so that a step costs its new tokens only."""

    output_ids: Sequence[int]
    """The request's own list: another object means another request under the same id."""
    counted: int
    counts: Tensor
    """fp32 [vocab_size]: occurrences in the output."""
    seen: Tensor
    """bool [vocab_size]: occurs in prompt or output."""


class Sampler:
    """Not thread-safe: it belongs to the runner's thread."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self._random = random.Random()
        self._histories: dict[str, _History] = {}

    def sample(self, logits: Tensor, segments: Sequence[Segment]) -> list[tuple[int, TokenLogprobs | None]]:
        """logits fp32 [rows, vocab_size], overwritten; segments[i] owns row i -> (id, log-probs if asked) per row."""
        rows = [i for i, s in enumerate(segments) if _is_penalised(s.params)]
        self._histories = {segments[i].request_id: self._history(segments[i]) for i in rows}
        chosen: list[tuple[int, TokenLogprobs | None]] = []
        for first in range(0, len(segments), ROWS_AT_ONCE):
            part = slice(first, first + ROWS_AT_ONCE)
            chosen += self._part(logits[part], segments[part])
        return chosen

    def _part(self, logits: Tensor, segments: Sequence[Segment]) -> list[tuple[int, TokenLogprobs | None]]:
        asked = [i for i, s in enumerate(segments) if s.params.logprobs is not None]
        raw = logits[asked] if asked else None
        self._mask_and_bias(logits, segments)
        self._penalise(logits, segments)
        ids = self._choose(logits, segments)
        reported: list[TokenLogprobs | None] = [None] * len(segments)
        if raw is not None:
            counts = [segments[i].params.logprobs or 0 for i in asked]
            for i, entry in zip(asked, token_logprobs(raw, [ids[i] for i in asked], counts), strict=True):
                reported[i] = entry
        return list(zip(ids, reported, strict=True))

    def forget(self) -> None:
        """Count anew what penalised requests have seen: a step that broke may have counted a token and not noted it."""
        self._histories = {}

    def _mask_and_bias(self, logits: Tensor, segments: Sequence[Segment]) -> None:
        masked: list[tuple[int, int]] = []
        biased: list[tuple[int, int, float]] = []
        for row, segment in enumerate(segments):
            params = segment.params
            if len(segment.output_ids) < params.min_tokens:
                masked += [(row, i) for i in (*segment.eos_ids, *params.stop_token_ids) if i < self.vocab_size]
            biased += [(row, i, value) for i, value in params.logit_bias]
        if biased:
            rows, ids, values = zip(*biased, strict=True)
            where = (self._ids(rows), self._ids(ids))
            logits.index_put_(where, torch.tensor(values, device=self.device), accumulate=True)
        if masked:
            rows, ids = zip(*masked, strict=True)
            logits[self._ids(rows), self._ids(ids)] = float("-inf")

    def _penalise(self, logits: Tensor, segments: Sequence[Segment]) -> None:
        rows = [i for i, s in enumerate(segments) if _is_penalised(s.params)]
        if not rows:
            return
        histories = [self._histories[segments[i].request_id] for i in rows]
        counts = torch.stack([h.counts for h in histories])
        seen = torch.stack([h.seen for h in histories])
        params = [segments[i].params for i in rows]
        repetition = self._column([p.repetition_penalty for p in params])
        frequency = self._column([p.frequency_penalty for p in params])
        presence = self._column([p.presence_penalty for p in params])
        chosen = logits[rows]
        repeated = torch.where(chosen > 0, chosen / repetition, chosen * repetition)
        chosen = torch.where(seen, repeated, chosen)
        logits[rows] = chosen - frequency * counts - presence * (counts > 0)

    def _history(self, segment: Segment) -> _History:
        history = self._histories.get(segment.request_id)
        if history is None or history.output_ids is not segment.output_ids:
            counts = torch.zeros(self.vocab_size, device=self.device)
            seen = torch.zeros(self.vocab_size, dtype=torch.bool, device=self.device)
            seen[self._ids(segment.prompt_ids)] = True
            history = _History(segment.output_ids, 0, counts, seen)
        new = self._ids(segment.output_ids[history.counted :])
        history.counts.index_add_(0, new, torch.ones(len(new), device=self.device))
        history.seen[new] = True
        history.counted += len(new)
        return history

    def _choose(self, logits: Tensor, segments: Sequence[Segment]) -> list[int]:
        ids: list[int] = sample.argmax(logits).tolist()
        rows = [i for i, s in enumerate(segments) if s.params.temperature >= GREEDY_BELOW]
        if rows:
            params = [segments[i].params for i in rows]
            uniform = torch.tensor([self._uniform(segments[i]) for i in rows], dtype=torch.float64, device=self.device)
            drawn = sample.draw(
                logits[rows],
                uniform,
                self._column([p.temperature for p in params])[:, 0],
                self._ids([p.top_k for p in params]),
                self._column([p.top_p for p in params])[:, 0],
                self._column([p.min_p for p in params])[:, 0],
            )
            for row, token in zip(rows, drawn.tolist(), strict=True):
                ids[row] = token
        return ids

    def _uniform(self, segment: Segment) -> float:
        seed = segment.params.seed
        if seed is None:
            return self._random.random()
        return seeded_uniform(seed, segment.position + len(segment.token_ids))

    def _ids(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self.device)[:, None]


def wants_argmax(segment: Segment) -> bool:
    """Whether the most probable id of the raw logits is all that the request asks for at this step."""
    params = segment.params
    return (
        params.temperature < GREEDY_BELOW
        and params.logprobs is None
        and not params.logit_bias
        and len(segment.output_ids) >= params.min_tokens
        and not _is_penalised(params)
    )


def _is_penalised(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def seeded_uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits that depends on seed and position alone.

    Two rounds of SplitMix64 (Steele, Lea, Flood 2014): a counter needs no generator state, so pre-emption, batching and
    the device cannot change a seeded request's draws.
    """
    return (_mix(_mix(seed & _MASK64) ^ position) >> 11) * 2.0**-53


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)
