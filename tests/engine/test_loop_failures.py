"""EngineLoop when something is wrong: the runner, a listener, a request, or the moment."""

from __future__ import annotations

import pytest

from engine.batch import Batch, Delivery, StepOutput
from engine.loop import EngineStopped
from engine.request import FinishReason
from engine.scheduler import QueueFull, RequestRefused
from tests.engine.looping import Breaking, Echo, Gated, Inbox, ask, build, start


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
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    runner, told = Breaking(error), f"{type(error).__name__}: device lost"
    loop = start(request, runner, seqs=2)
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


def test_an_abort_in_a_step_that_breaks_is_still_answered(request: pytest.FixtureRequest) -> None:
    runner = Breaking(RuntimeError("device lost"))
    loop = start(request, runner)
    inbox = Inbox()
    loop.submit(ask(1), inbox)
    runner.wait_inside()
    runner.passes.release()
    runner.wait_inside()
    loop.abort("r1")
    runner.open()
    assert inbox.wait().tokens == [1000]
    assert inbox.reason is FinishReason.ABORT


def test_a_runner_that_answers_wrongly_kills_the_loop_too(request: pytest.FixtureRequest) -> None:
    class Confused(Echo):
        def run(self, batch: Batch) -> StepOutput:
            return StepOutput(batch.step + 1, super().run(batch).sampled)

    loop = start(request, Confused())
    inbox = Inbox()
    loop.submit(ask(1), inbox)
    inbox.wait()
    assert inbox.reason is FinishReason.ERROR
    assert "expected step 0" in str(inbox.deliveries[-1].error)


def test_a_listener_that_raises_loses_its_own_request_only(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    loop = start(request, Echo())
    other = Inbox()

    def broken(_: Delivery) -> None:
        raise ConnectionResetError("client gone")

    loop.submit(ask(1, max_tokens=30), broken)
    loop.submit(ask(2), other)
    assert other.wait().tokens == [2000, 2001, 2002, 2003]
    loop.stop()
    assert loop.stats().finished[FinishReason.ABORT] == 1
    assert "the listener of request r1 failed; the request is aborted" in caplog.text


def test_refusals_come_at_once_and_leave_no_trace(request: pytest.FixtureRequest) -> None:
    runner = Gated()
    loop = start(request, runner, seqs=1, waiting=1)
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
