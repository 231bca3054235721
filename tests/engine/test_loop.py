"""EngineLoop: threads, aborts, draining, and what happens when the runner or a listener breaks.

Every wait has a limit that only a deadlock reaches; no test looks at how long something took.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.batch import Batch, Delivery, Sampled, Segment, StepOutput
from engine.cache.blocks import BlockPool
from engine.cache.states import StatePool
from engine.config import EngineConfig, ModelConfig, SchedulerConfig
from engine.loop import EngineLoop, EngineStopped
from engine.request import FinishReason, Request, SamplingParams
from engine.scheduler import QueueFull, RequestRefused, Scheduler

DEADLOCK_S = 60


class Echo:
    """A runner whose token says whose it is and which: prompt[0] × 1000 + tokens generated so far."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def info(self) -> dict[str, object]:
        return {"runner": "echo"}

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


@pytest.fixture
def started() -> Iterator[list[EngineLoop]]:
    """Loops listed here are ended after the test, come what may."""
    loops: list[EngineLoop] = []
    yield loops
    for loop in loops:
        if isinstance(loop.runner, Gated):
            loop.runner.open()
        loop.stop(drain=False)


def ask(number: int, max_tokens: int = 4, prompt: int = 3) -> Request:
    return Request(f"r{number}", (number,) * prompt, SamplingParams(max_tokens))


def start(started: list[EngineLoop], runner: Echo, **sizes: int) -> EngineLoop:
    loop = build(runner, **sizes)
    started.append(loop)
    loop.start()
    return loop


def test_tokens_reach_their_own_listener_on_the_loop_thread(started: list[EngineLoop]) -> None:
    loop = start(started, Echo())
    inboxes = [Inbox() for _ in range(6)]
    for number, inbox in enumerate(inboxes):
        loop.submit(ask(number), inbox)
    for number, inbox in enumerate(inboxes):
        assert inbox.wait().tokens == [number * 1000 + i for i in range(4)]
        assert inbox.reason is FinishReason.LENGTH
        assert inbox.threads == {"engine-loop"}


def test_an_idle_loop_sleeps(started: list[EngineLoop]) -> None:
    runner = Echo()
    loop = start(started, runner)
    for number in range(3):
        inbox = Inbox()
        loop.submit(ask(number), inbox)
        inbox.wait()
    loop.stop()
    assert isinstance(loop.scheduler, Counting)
    assert loop.scheduler.asked == len(runner.batches) == 12  # never asked in vain


def test_an_abort_in_flight_drops_the_token_and_is_in_force_before_the_next_step(started: list[EngineLoop]) -> None:
    runner = Gated()
    loop = start(started, runner)
    gone, stays = Inbox(), Inbox()
    loop.submit(ask(1), gone)
    runner.wait_inside()
    loop.submit(ask(2), stays)
    loop.abort("r1")
    loop.abort("r1")
    runner.open()
    stays.wait()
    assert gone.wait().deliveries == [Delivery("r1", (), finish_reason=FinishReason.ABORT)]
    assert stays.tokens == [2000, 2001, 2002, 2003]
    assert [s.request_id for batch in runner.batches for s in batch.segments] == ["r1"] + ["r2"] * 4


def test_a_listener_may_abort_its_own_request(started: list[EngineLoop]) -> None:
    loop = start(started, Echo())
    inbox = Inbox()

    def until_two(delivery: Delivery) -> None:
        inbox(delivery)
        if len(inbox.tokens) == 2 and delivery.finish_reason is None:
            loop.abort(delivery.request_id, FinishReason.STOP)

    loop.submit(ask(1, max_tokens=9), until_two)
    assert inbox.wait().tokens == [1000, 1001]
    assert inbox.reason is FinishReason.STOP
    assert loop.stats().finished[FinishReason.STOP] == 1


def test_stop_drains_what_was_accepted(started: list[EngineLoop]) -> None:
    runner = Gated()
    loop = start(started, runner, seqs=2)
    inboxes = [Inbox() for _ in range(5)]
    for number, inbox in enumerate(inboxes):
        loop.submit(ask(number), inbox)
    runner.wait_inside()
    stopping = threading.Thread(target=loop.stop)
    stopping.start()
    runner.open()
    stopping.join(DEADLOCK_S)
    assert not stopping.is_alive()
    assert [inbox.reason for inbox in inboxes] == [FinishReason.LENGTH] * 5


def test_stop_without_drain_aborts_and_tells_everyone(started: list[EngineLoop]) -> None:
    runner = Gated()
    loop = start(started, runner, seqs=2)
    inboxes = [Inbox() for _ in range(5)]
    for number, inbox in enumerate(inboxes):
        loop.submit(ask(number), inbox)
    runner.wait_inside()
    stopping = threading.Thread(target=loop.stop, kwargs={"drain": False})
    stopping.start()
    while loop.stats().alive:  # the same lock hold that says no longer alive aborts everyone
        stopping.join(0.001)
    runner.open()
    stopping.join(DEADLOCK_S)
    assert not stopping.is_alive()
    for number, inbox in enumerate(inboxes):
        assert inbox.deliveries == [Delivery(f"r{number}", (), finish_reason=FinishReason.ABORT)]
    assert loop.scheduler.blocks.usage == 0


def test_requests_are_refused_before_start_and_after_stop() -> None:
    loop = build(Echo())
    with pytest.raises(EngineStopped, match="the engine takes no requests: it is stopped"):
        loop.submit(ask(1), Inbox())
    loop.start()
    assert loop.stats().alive
    loop.stop()
    loop.stop()
    assert not loop.stats().alive
    with pytest.raises(EngineStopped, match="it is stopped"):
        loop.submit(ask(1), Inbox())


def test_stopping_a_loop_that_never_started_returns() -> None:
    loop = build(Echo())
    loop.stop()
    assert not loop.stats().alive


@pytest.mark.parametrize("error", [RuntimeError("device lost"), SystemExit("device lost")], ids=repr)
def test_a_runner_error_fails_everyone_and_kills_the_loop(
    started: list[EngineLoop], caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    runner, told = Breaking(error), f"{type(error).__name__}: device lost"
    loop = start(started, runner, seqs=2)
    inboxes = [Inbox() for _ in range(4)]
    for number, inbox in enumerate(inboxes):
        loop.submit(ask(number), inbox)
    runner.open()
    for inbox in inboxes:
        inbox.wait()
        assert inbox.reason is FinishReason.ERROR
        assert inbox.deliveries[-1].error == told
    stats = loop.stats()
    assert (stats.alive, stats.error, stats.running, stats.waiting) == (False, told, 0, 0)
    assert stats.step_age_s is None
    with pytest.raises(EngineStopped, match=f"{told}; restart it"):
        loop.submit(ask(9), Inbox())
    assert "the engine loop died" in caplog.text


def test_an_abort_in_a_step_that_breaks_is_still_answered(started: list[EngineLoop]) -> None:
    runner = Breaking(RuntimeError("device lost"))
    loop = start(started, runner)
    inbox = Inbox()
    loop.submit(ask(1), inbox)
    runner.wait_inside()
    runner.passes.release()
    runner.wait_inside()
    loop.abort("r1")
    runner.open()
    assert inbox.wait().tokens == [1000]
    assert inbox.reason is FinishReason.ABORT


def test_an_id_is_in_use_until_its_last_delivery(started: list[EngineLoop]) -> None:
    runner = Gated()
    loop = start(started, runner)
    first, second, refusals = Inbox(), Inbox(), list[str]()

    def reuse(delivery: Delivery) -> None:
        if delivery.finish_reason is not None:
            try:
                loop.submit(ask(2), Inbox())
            except RequestRefused as error:
                refusals.append(str(error))
        first(delivery)

    loop.submit(ask(0, max_tokens=1), Inbox())
    runner.wait_inside()
    loop.submit(ask(1, max_tokens=1), reuse)
    loop.submit(ask(2, max_tokens=1), second)  # ends in the same step, is delivered to after r1
    runner.open()
    first.wait()
    second.wait()
    assert refusals == ["request id r2 is in use; give every request its own id"]
    assert second.tokens == [2000]


def test_a_runner_that_answers_wrongly_kills_the_loop_too(started: list[EngineLoop]) -> None:
    class Confused(Echo):
        def run(self, batch: Batch) -> StepOutput:
            return StepOutput(batch.step + 1, super().run(batch).sampled)

    loop = start(started, Confused())
    inbox = Inbox()
    loop.submit(ask(1), inbox)
    inbox.wait()
    assert inbox.reason is FinishReason.ERROR
    assert "expected step 0" in str(inbox.deliveries[-1].error)


def test_a_listener_that_raises_loses_its_own_request_only(
    started: list[EngineLoop], caplog: pytest.LogCaptureFixture
) -> None:
    loop = start(started, Echo())
    other = Inbox()

    def broken(_: Delivery) -> None:
        raise ConnectionResetError("client gone")

    loop.submit(ask(1, max_tokens=30), broken)
    loop.submit(ask(2), other)
    assert other.wait().tokens == [2000, 2001, 2002, 2003]
    loop.stop()
    assert loop.stats().finished[FinishReason.ABORT] == 1
    assert "the listener of request r1 failed; the request is aborted" in caplog.text


def test_refusals_come_at_once_and_leave_no_trace(started: list[EngineLoop]) -> None:
    runner = Gated()
    loop = start(started, runner, seqs=1, waiting=1)
    loop.submit(ask(1), Inbox())
    runner.wait_inside()
    loop.submit(ask(2), Inbox())
    never = Inbox()
    with pytest.raises(RequestRefused, match="more than max_model_len 64"):
        loop.submit(ask(3, max_tokens=100), never)
    with pytest.raises(RequestRefused, match="request id r2 is in use"):
        loop.submit(ask(2), never)
    with pytest.raises(QueueFull, match="1 requests are waiting, the limit is 1"):
        loop.submit(ask(4), never)
    runner.open()
    loop.stop()
    assert never.deliveries == []


def test_stats_during_a_step_and_times_after_it(started: list[EngineLoop]) -> None:
    runner = Gated()
    loop = start(started, runner, seqs=1)
    first, second = ask(1), ask(2)
    inboxes = Inbox(), Inbox()
    loop.submit(first, inboxes[0])
    runner.wait_inside()
    loop.submit(second, inboxes[1])
    stats = loop.stats()
    assert (stats.alive, stats.running, stats.waiting, stats.kv_usage) == (True, 1, 1, 1 / 64)
    assert stats.step_age_s is not None
    runner.open()
    for inbox in inboxes:
        inbox.wait()
    loop.stop()
    stats = loop.stats()
    assert (stats.prompt_tokens, stats.generation_tokens, stats.preemptions) == (6, 8, 0)
    assert stats.finished[FinishReason.LENGTH] == 2
    for request in (first, second):
        assert request.first_scheduled is not None
        assert request.first_token is not None
        assert request.finished is not None
        assert 0 < request.arrival <= request.first_scheduled <= request.first_token <= request.finished
    assert first.finished is not None
    assert second.first_scheduled is not None
    assert first.finished <= second.first_scheduled


def test_many_threads_submit_and_abort(started: list[EngineLoop]) -> None:
    loop = start(started, Echo(), seqs=3, blocks=16)
    inboxes: dict[int, Inbox] = {}

    def client(base: int) -> None:
        chance = random.Random(base)
        for number in range(base, base + 25):
            inbox = inboxes[number] = Inbox()
            loop.submit(ask(number, max_tokens=chance.randint(1, 30), prompt=chance.randint(1, 20)), inbox)
            if chance.random() < 0.3:
                loop.abort(f"r{number}")
            if chance.random() < 0.5:
                inbox.wait()

    clients = [threading.Thread(target=client, args=(base,)) for base in (100, 200, 300, 400)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(DEADLOCK_S)
        assert not thread.is_alive()
    loop.stop()
    for number, inbox in inboxes.items():
        assert inbox.over.is_set()
        assert inbox.tokens == [number * 1000 + i for i in range(len(inbox.tokens))]
    assert len(inboxes) == 100
    assert loop.scheduler.blocks.usage == 0
    assert loop.scheduler.states.num_free == 3
    assert sum(loop.stats().finished.values()) == 100


def test_everything_above_the_runner_loads_without_torch_or_numpy() -> None:
    code = "import sys, engine.loop; print(sorted({'torch', 'numpy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
