"""EngineLoop: deliveries, aborts, draining, idling, counters, and many threads at once."""

from __future__ import annotations

import random
import subprocess
import sys
import threading

import pytest

from engine.batch import Delivery
from engine.request import FinishReason
from engine.scheduler import RequestRefused
from tests.engine.looping import DEADLOCK_S, Counting, Echo, Gated, Inbox, ask, start


def test_tokens_reach_their_own_listener_on_the_loop_thread(request: pytest.FixtureRequest) -> None:
    loop = start(request, Echo())
    inboxes = [Inbox() for _ in range(6)]
    for number, inbox in enumerate(inboxes):
        loop.submit(ask(number), inbox)
    for number, inbox in enumerate(inboxes):
        assert inbox.wait().tokens == [number * 1000 + i for i in range(4)]
        assert inbox.reason is FinishReason.LENGTH
        assert inbox.threads == {"engine-loop"}


def test_an_idle_loop_sleeps(request: pytest.FixtureRequest) -> None:
    runner = Echo()
    loop = start(request, runner)
    for number in range(3):
        inbox = Inbox()
        loop.submit(ask(number), inbox)
        inbox.wait()
    loop.stop()
    assert isinstance(loop.scheduler, Counting)
    assert loop.scheduler.asked == len(runner.batches) == 12  # never asked in vain


def test_an_abort_in_flight_drops_the_token_and_holds_before_the_next_step(
    request: pytest.FixtureRequest,
) -> None:
    runner = Gated()
    loop = start(request, runner)
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


def test_a_listener_may_abort_its_own_request(request: pytest.FixtureRequest) -> None:
    loop = start(request, Echo())
    inbox = Inbox()

    def until_two(delivery: Delivery) -> None:
        inbox(delivery)
        if len(inbox.tokens) == 2 and delivery.finish_reason is None:
            loop.abort(delivery.request_id, FinishReason.STOP)

    loop.submit(ask(1, max_tokens=9), until_two)
    assert inbox.wait().tokens == [1000, 1001]
    assert inbox.reason is FinishReason.STOP
    assert loop.stats().finished[FinishReason.STOP] == 1


def test_stop_drains_what_was_accepted(request: pytest.FixtureRequest) -> None:
    runner = Gated()
    loop = start(request, runner, seqs=2)
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


def test_stop_without_drain_aborts_and_tells_everyone(request: pytest.FixtureRequest) -> None:
    runner = Gated()
    loop = start(request, runner, seqs=2)
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


def test_an_id_is_in_use_until_its_last_delivery(request: pytest.FixtureRequest) -> None:
    runner = Gated()
    loop = start(request, runner)
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


def test_stats_during_a_step_and_times_after_it(request: pytest.FixtureRequest) -> None:
    runner = Gated()
    loop = start(request, runner, seqs=1)
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
    for asked in (first, second):
        assert asked.first_scheduled is not None
        assert asked.first_token is not None
        assert asked.finished is not None
        assert 0 < asked.arrival <= asked.first_scheduled <= asked.first_token <= asked.finished
    assert first.finished is not None
    assert second.first_scheduled is not None
    assert first.finished <= second.first_scheduled


def test_many_threads_submit_and_abort(request: pytest.FixtureRequest) -> None:
    loop = start(request, Echo(), seqs=3, blocks=16)
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
