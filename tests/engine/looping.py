"""Loop tests share this: runners that echo, wait or break, listeners that keep what they got.

Every wait has a limit that only a deadlock reaches; no test looks at how long something took.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from engine.batch import Batch, Delivery, Sampled, Segment, StepOutput, Ticket
from engine.cache.blocks import BlockPool
from engine.cache.states import StatePool
from engine.config import EngineConfig, ModelConfig, SchedulerConfig
from engine.loop import EngineLoop
from engine.request import FinishReason, Request, SamplingParams
from engine.scheduler import Scheduler

DEADLOCK_S = 60


class Echo:
    """A runner whose token says whose it is and which: prompt[0] × 1000 + tokens generated so far."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.recovered = 0

    def recover(self) -> None:
        self.recovered += 1

    def info(self) -> dict[str, object]:
        return {"runner": "echo"}

    def submit(self, batch: Batch) -> Ticket:
        output = self.run(batch)
        return Ticket(batch, followable=False, finish=lambda: output)

    def run(self, batch: Batch) -> StepOutput:
        self.batches.append(batch)
        return StepOutput(batch.step, tuple(Sampled(s.request_id, self._token(s)) for s in batch.segments))

    def _token(self, segment: Segment) -> int | None:
        return segment.prompt_ids[0] * 1000 + len(segment.output_ids) if segment.sample else None


class Gated(Echo):
    """Stops inside each step until it is let through, so that a test can act while a step is in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Semaphore(0)
        self.passes = threading.Semaphore(0)

    def run(self, batch: Batch) -> StepOutput:
        self.entered.release()
        assert self.passes.acquire(timeout=DEADLOCK_S)
        return super().run(batch)

    def wait_inside(self) -> None:
        assert self.entered.acquire(timeout=DEADLOCK_S)

    def open(self) -> None:
        self.passes.release(10_000)


class Breaking(Gated):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def run(self, batch: Batch) -> StepOutput:
        output = super().run(batch)
        if batch.step == 1:
            raise self.error
        return output


class Inbox:
    """A listener that keeps what it got and on which thread."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.threads: set[str] = set()
        self.over = threading.Event()

    def __call__(self, delivery: Delivery) -> None:
        assert not self.over.is_set(), "delivered to after the end"
        self.deliveries.append(delivery)
        self.threads.add(threading.current_thread().name)
        if delivery.finish_reason is not None:
            self.over.set()

    @property
    def tokens(self) -> list[int]:
        return [token for delivery in self.deliveries for token in delivery.token_ids]

    @property
    def reason(self) -> FinishReason | None:
        return self.deliveries[-1].finish_reason if self.deliveries else None

    def wait(self) -> Inbox:
        assert self.over.wait(DEADLOCK_S), "never ended"
        return self


class Counting(Scheduler):
    """Counts how often it was asked for a step."""

    asked = 0

    def schedule(self) -> Batch | None:
        self.asked += 1
        return super().schedule()


def build(runner: Echo, *, seqs: int = 4, blocks: int = 64, waiting: int = 64) -> EngineLoop:
    config = EngineConfig(ModelConfig(Path("model")), scheduler=SchedulerConfig(seqs, 16, 64, waiting))
    return EngineLoop(Counting(config, BlockPool(blocks, 4), StatePool(seqs)), runner)


def ask(number: int, max_tokens: int = 4, prompt: int = 3) -> Request:
    return Request(f"r{number}", (number,) * prompt, SamplingParams(max_tokens))


def start(request: pytest.FixtureRequest, runner: Echo, **sizes: int) -> EngineLoop:
    """A started loop that is ended after the test, come what may."""
    loop = build(runner, **sizes)

    def end() -> None:
        if isinstance(runner, Gated):
            runner.open()
        loop.stop(drain=False)

    request.addfinalizer(end)
    loop.start()
    return loop
