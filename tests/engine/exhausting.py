"""Tests of steps that run out of memory share this: a runner whose steps do, and leave their memory torn.

It computes on memory_model's Model, whose tokens are a function of all KV and recurrent state that a request reads: a
step run again on top of a torn one, or a request that is not recomputed, has other tokens than alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from engine.batch import Batch, Segment, StepOutput, Ticket
from engine.cache.blocks import BlockPool
from engine.cache.states import StatePool
from engine.config import EngineConfig, ModelConfig, SchedulerConfig
from engine.loop import EngineLoop
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler
from tests.engine import memory_model
from tests.engine.looping import Inbox

BLOCK_TOKENS = 4
SAID = "CUDA out of memory. Tried to allocate 1.06 GiB"

Fails = Callable[[Batch, str], bool]
"""Whether that step runs out of memory, in "submit" or in "finish"."""


class Exhausted:
    def __init__(self, fails: Fails, *, ahead: bool = False, error: type[Exception] = torch.OutOfMemoryError) -> None:
        self.fails, self.ahead, self.error = fails, ahead, error
        self.model = memory_model.Model(BLOCK_TOKENS)
        self.batches: list[Batch] = []
        self.events: list[tuple[str, int]] = []
        self.recovered = 0
        self._broken = False
        self._before: StepOutput | None = None

    def submit(self, batch: Batch) -> Ticket:
        assert not self._broken, "a step was submitted on top of one that broke"
        self.batches.append(batch)
        self.events.append(("submit", batch.step))
        if self.fails(batch, "submit"):
            self._break(batch)
        output = self._before = self.model.run(replace(batch, segments=tuple(map(self._known, batch.segments))))

        def finish() -> StepOutput:
            self.events.append(("finish", batch.step))
            if self.fails(batch, "finish"):
                self._break(batch)
            return output

        return Ticket(batch, self.ahead and all(len(s.token_ids) == 1 for s in batch.segments), finish)

    def recover(self) -> None:
        self.recovered += 1
        self._broken = False

    def info(self) -> dict[str, object]:
        return {}

    def _known(self, segment: Segment) -> Segment:
        if segment.feed is None:
            return segment
        assert self._before is not None
        token = self._before.sampled[segment.feed].token_id
        assert token is not None
        return replace(segment, token_ids=(token,), output_ids=(*segment.output_ids, token))

    def _break(self, batch: Batch) -> None:
        """Recurrent state and KV of the whole step are neither as before nor as after it."""
        self._broken = True
        for segment in batch.segments:
            self.model.state[segment.state_slot] = -1 - batch.step
            for position in range(segment.position, segment.position + len(segment.token_ids)):
                place = segment.block_ids[position // BLOCK_TOKENS], position % BLOCK_TOKENS
                self.model.kv[place] = segment.request_id, position, -1, -1
        raise self.error(SAID)


def loop_over(runner: Exhausted, *, seqs: int = 4, budget: int = 16, blocks: int = 64) -> EngineLoop:
    config = EngineConfig(ModelConfig(Path("model")), scheduler=SchedulerConfig(seqs, budget, 128, 64))
    return EngineLoop(Scheduler(config, BlockPool(blocks, BLOCK_TOKENS), StatePool(seqs)), runner)


def ask(number: int, prompt: int = 5, max_tokens: int = 6) -> Request:
    ids = tuple((number * 5 + k * 3) % memory_model.VOCAB for k in range(prompt))
    return Request(f"r{number}", ids, SamplingParams(max_tokens, ignore_eos=True))


def serve(loop: EngineLoop, *requests: Request) -> list[Inbox]:
    """All of them handed in before the loop starts, so that every run has the same steps; what each got."""
    loop._accepting = True
    inboxes = [Inbox() for _ in requests]
    for request, inbox in zip(requests, inboxes, strict=True):
        loop.submit(request, inbox)
    loop.start()
    for inbox in inboxes:
        inbox.wait()
    return inboxes


def alone(request: Request) -> list[int]:
    return memory_model.alone(request)[0]


def idle(loop: EngineLoop) -> bool:
    """Nothing is held any more."""
    scheduler = loop.scheduler
    return scheduler.blocks.usage == 0 and scheduler.states.num_free == scheduler.states.num_slots
