"""The loop with a runner whose steps can be followed: the next step is submitted before the last one's ids are read."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from engine.batch import Batch, Sampled, StepOutput, Ticket
from engine.request import FinishReason, SamplingParams
from tests.engine.looping import DEADLOCK_S, Echo, Inbox, ask, start


class Ahead(Echo):
    """Decoding steps can be followed; says in which order steps were submitted and finished."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, int]] = []
        self.third = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def submit(self, batch: Batch) -> Ticket:
        self.batches.append(batch)
        self.events.append(("submit", batch.step))
        sampled = tuple(
            Sampled(s.request_id, s.prompt_ids[0] * 1000 + len(s.output_ids) + (s.feed is not None))
            for s in batch.segments
        )

        def finish() -> StepOutput:
            if batch.step == 2:
                self.third.set()
                assert self.go_on.wait(DEADLOCK_S)
            self.events.append(("finish", batch.step))
            return StepOutput(batch.step, sampled)

        followable = all(len(s.token_ids) == 1 for s in batch.segments)
        return Ticket(batch, followable, finish)


def test_a_step_is_submitted_before_the_one_before_is_read(request: pytest.FixtureRequest) -> None:
    runner, inbox = Ahead(), Inbox()
    start(request, runner).submit(ask(1, max_tokens=4), inbox)
    assert inbox.wait().tokens == [1000, 1001, 1002, 1003]
    assert runner.events == [
        ("submit", 0),
        ("finish", 0),  # the prompt: what its id is decides what is known on the device
        ("submit", 1),
        ("submit", 2),
        ("finish", 1),
        ("submit", 3),
        ("finish", 2),
        ("finish", 3),  # and no step past max_tokens
    ]


def test_a_stop_id_in_flight_discards_what_followed_it(request: pytest.FixtureRequest) -> None:
    runner, inbox, after = Ahead(), Inbox(), Inbox()
    loop = start(request, runner)
    stopped = ask(1, max_tokens=9)
    stopped.params = SamplingParams(9, stop_token_ids=(1002,))
    loop.submit(stopped, inbox)
    assert inbox.wait().tokens == [1000, 1001, 1002]
    assert inbox.reason is FinishReason.STOP
    loop.submit(ask(2), after)
    assert after.wait().tokens == [2000, 2001, 2002, 2003]
    assert loop.stats().kv_usage == 0
    assert loop.stats().generation_tokens == 7


def test_an_abort_with_two_steps_in_flight_frees_the_request(request: pytest.FixtureRequest) -> None:
    runner, inbox, other = Ahead(), Inbox(), Inbox()
    runner.go_on.clear()
    loop = start(request, runner)
    loop.submit(ask(1, max_tokens=9), inbox)
    assert runner.third.wait(DEADLOCK_S)
    assert loop.scheduler.in_flight == 2
    loop.abort("r1")
    assert loop.stats().kv_usage > 0  # both steps still write there
    runner.go_on.set()
    assert inbox.wait().reason is FinishReason.ABORT
    loop.submit(ask(2), other)
    assert other.wait().tokens == [2000, 2001, 2002, 2003]
    assert loop.stats().kv_usage == 0


def test_one_that_waits_is_admitted_at_the_next_step(request: pytest.FixtureRequest) -> None:
    runner, first, second = Ahead(), Inbox(), Inbox()
    runner.go_on.clear()
    loop = start(request, runner)
    loop.submit(ask(1, max_tokens=9), first)
    assert runner.third.wait(DEADLOCK_S)  # steps 2 and 3 are in flight
    loop.submit(ask(2, max_tokens=2), second)
    runner.go_on.set()
    assert second.wait().tokens == [2000, 2001]
    assert first.wait().tokens == [1000 + i for i in range(9)]
    joined = next(batch.step for batch in runner.batches if any(s.request_id == "r2" for s in batch.segments))
    assert joined == 4


def test_the_age_of_a_step_is_known_while_two_are_in_flight(request: pytest.FixtureRequest) -> None:
    runner, inbox = Ahead(), Inbox()
    runner.go_on.clear()
    loop = start(request, runner)
    loop.submit(ask(1), inbox)
    assert runner.third.wait(DEADLOCK_S)
    assert loop.stats().step_age_s is not None
    runner.go_on.set()
    inbox.wait()
    loop.stop()
    assert loop.stats().step_age_s is None


def test_a_runner_that_breaks_with_two_steps_in_flight_ends_every_request(request: pytest.FixtureRequest) -> None:
    class Broken(Ahead):
        def submit(self, batch: Batch) -> Ticket:
            ticket = super().submit(batch)

            def broken() -> StepOutput:
                assert self.go_on.wait(DEADLOCK_S)
                raise RuntimeError("device lost")

            return replace(ticket, finish=broken) if batch.step == 2 else ticket

    runner, inboxes = Broken(), [Inbox(), Inbox()]
    runner.go_on.clear()
    loop = start(request, runner)
    for number, inbox in enumerate(inboxes):
        loop.submit(ask(number + 1, max_tokens=20), inbox)
    runner.go_on.set()
    assert [inbox.wait().reason for inbox in inboxes] == [FinishReason.ERROR] * 2
    assert loop.scheduler.in_flight == 0
    assert loop.scheduler.blocks.usage == 0
    assert loop.scheduler.states.num_free == loop.scheduler.states.num_slots
