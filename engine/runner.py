"""ModelRunner: one Batch in, one StepOutput out. It owns the model, the caches and the sampler."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from engine.batch import Batch, Sampled, Segment, StepOutput, TokenLogprobs
from engine.logprobs import PromptLogprobs
from engine.models.caches import Caches
from engine.models.qwen3_5 import Qwen3_5ForCausalLM
from engine.sampler import Sampler
from engine.steps import build_step


class ModelRunner:
    """Called from one thread. A step is complete when `run` returns."""

    def __init__(self, model: Qwen3_5ForCausalLM, caches: Caches, vocab_size: int) -> None:
        self.model = model
        self.caches = caches
        self.device = caches.kv.device
        self.sampler = Sampler(vocab_size, self.device)
        self.prompt_logprobs = PromptLogprobs(model.logits)

    @torch.inference_mode()
    def run(self, batch: Batch) -> StepOutput:
        """Run the step, update the caches, sample where asked."""
        fresh = [s.state_slot for s in batch.segments if s.zero_state]
        if fresh:
            self.caches.zero_slots(torch.tensor(fresh, device=self.device))
        step = build_step(batch, self.caches.block_tokens, self.device)
        hidden = self.model.forward(step, self.caches)
        ends = list(accumulate(len(s.token_ids) for s in batch.segments))
        prompts = [self._prompt(s, hidden, end) for s, end in zip(batch.segments, ends, strict=True)]
        chosen = iter(self._sample(batch.segments, hidden, ends))
        sampled = []
        for segment, prompt in zip(batch.segments, prompts, strict=True):
            token, logprobs = next(chosen) if segment.sample else (None, None)
            sampled.append(Sampled(segment.request_id, token, logprobs, prompt))
        return StepOutput(batch.step, tuple(sampled))

    def _sample(
        self, segments: tuple[Segment, ...], hidden: Tensor, ends: list[int]
    ) -> list[tuple[int, TokenLogprobs | None]]:
        """Only rows that end a known sequence go through lm_head."""
        pairs = [(s, end - 1) for s, end in zip(segments, ends, strict=True) if s.sample]
        if not pairs:
            return []
        rows = [row for _, row in pairs]
        if rows != list(range(hidden.shape[0])):
            hidden = hidden[torch.tensor(rows, device=self.device)]
        return self.sampler.sample(self.model.logits(hidden), [s for s, _ in pairs])

    def _prompt(self, segment: Segment, hidden: Tensor, end: int) -> tuple[TokenLogprobs | None, ...]:
        if segment.params.prompt_logprobs is None:
            return ()
        return self.prompt_logprobs.take(segment, hidden[end - len(segment.token_ids) : end])
