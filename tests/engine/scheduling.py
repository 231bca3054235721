"""Scheduler tests share this: a small scheduler, small requests, a runner in one line, one step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine.batch import Batch, Delivery, Sampled, StepOutput
from engine.cache.blocks import BlockPool
from engine.cache.states import StatePool
from engine.config import EngineConfig, ModelConfig, SchedulerConfig
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler

EOS = frozenset({0})


def make(
    *, seqs: int = 4, budget: int = 16, blocks: int = 64, block_tokens: int = 4, waiting: int = 8, max_len: int = 128
) -> Scheduler:
    limits = SchedulerConfig(seqs, budget, max_len, waiting)
    config = EngineConfig(ModelConfig(Path("model")), scheduler=limits)
    ticks = itertools.count(1)
    return Scheduler(config, BlockPool(blocks, block_tokens), StatePool(seqs), clock=lambda: float(next(ticks)))


def ask(name: str, prompt: int = 3, max_tokens: int = 8, **params: object) -> Request:
    return Request(name, tuple(range(1, prompt + 1)), replace(SamplingParams(max_tokens), **params), EOS)


def answer(batch: Batch, token: Callable[[str], int] = lambda _: 5) -> StepOutput:
    return StepOutput(
        batch.step, tuple(Sampled(s.request_id, token(s.request_id) if s.sample else None) for s in batch.segments)
    )


def step(scheduler: Scheduler, token: Callable[[str], int] = lambda _: 5) -> tuple[Batch, list[Delivery]]:
    batch = scheduler.schedule()
    assert batch is not None
    return batch, scheduler.update(batch, answer(batch, token))


def shape(batch: Batch) -> list[tuple[str, int, int]]:
    return [(s.request_id, s.position, len(s.token_ids)) for s in batch.segments]
