"""EngineLoop: the engine's own thread. Receive, schedule, submit, deliver the step before; then again.

Where a step's ids stay on the device and the next step is certain without knowing them, that one is submitted before
they are read back, so that the device never waits for the host. Everywhere else one step ends before the next begins.

A step that runs out of memory ends nobody's request but that which cannot run alone: what was in flight is void, its
requests are recomputed from their tokens. Any other error of the runner ends all, since nothing is known of the device.

One lock guards the scheduler. The loop thread holds it to schedule and to update, never while the model runs or a
listener is called, so `submit` and `abort` take microseconds from any thread, answer at once with the scheduler's own
refusal, and are in force before the next step. An inbox was rejected: refusals would come late and out of order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from typing import Protocol

from engine.batch import Batch, Delivery, StepOutput, Ticket
from engine.exhausted import attempt
from engine.request import FinishReason, Request
from engine.scheduler import RequestRefused, Scheduler
from engine.stats import LoopStats, SchedulerStats

logger = logging.getLogger(__name__)

Listener = Callable[[Delivery], None]


class Runner(Protocol):
    """What turns a Batch into tokens. Called from the loop thread only."""

    def submit(self, batch: Batch) -> Ticket: ...

    def recover(self) -> None:
        """After a step that ran out of memory: no step is in flight any more, and what can be freed is free."""
        ...

    def info(self) -> dict[str, object]: ...


class EngineStopped(RuntimeError):
    """The loop is not running: not started, stopping, or dead of a runner error. The HTTP side answers 503."""


class EngineLoop:
    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self._thread = threading.Thread(target=self._run, name="engine-loop", daemon=True)
        self._wake = threading.Condition()
        self._listeners: dict[str, Listener] = {}
        self._outbox: list[Delivery] = []
        self._accepting = False
        self._error: str | None = None
        self._step_began: float | None = None

    def _run(self) -> None:
        try:
            before: Ticket | None = None
            while self._receive():
                before = self._turn(before)
        except BaseException as error:  # SystemExit too: whoever waits for a token must hear of it
            logger.exception("the engine loop died")
            self._deliver(self._fail(error))

    def _turn(self, before: Ticket | None) -> Ticket | None:
        """Submit the step that comes next, deliver the one before it; the ticket that is in flight then."""
        batch, ticket, lost = self._schedule(before), None, None
        if batch is not None:
            ticket, lost = attempt(partial(self.runner.submit, batch))
        if before is not None:
            output, unread = attempt(before.finish)
            if output is not None:
                self._deliver(self._update(before.batch, output))
            else:  # and what was submitted after it took its ids from it
                batch, lost = before.batch, unread
        if batch is None or lost is None:
            return ticket
        self._recover(batch, lost)
        return None

    def _recover(self, batch: Batch, lost: str) -> None:
        """Only what cannot run alone may end because a step ran out of memory: the others are recomputed and go on."""
        logger.warning(
            "step %d of %d tokens in %d requests ran out of memory (%s); they are recomputed; if it happens again and "
            "again, give the device to this server alone, or lower --num-blocks or --max-num-batched-tokens",
            batch.step,
            batch.num_tokens,
            len(batch.segments),
            lost,
        )
        self.runner.recover()
        with self._wake:
            deliveries = self.scheduler.take_back(lost)
            self._step_began = None
        for delivery in deliveries:
            logger.error("request %s ended: %s", delivery.request_id, delivery.error)
        self._deliver(deliveries)

    def start(self) -> None:
        self._accepting = True
        self._thread.start()

    def stop(self, *, drain: bool = True) -> None:
        """Refuse new requests, finish (or, without `drain`, abort) those accepted, end the thread. Waits for it."""
        with self._wake:
            self._accepting = False
            if not drain:
                for request_id in list(self._listeners):
                    self._abort(request_id, FinishReason.ABORT)
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def submit(self, request: Request, listener: Listener) -> None:
        """Queue a request; `listener` gets its Deliveries from the loop thread, the last with a finish_reason.

        Raises RequestRefused, QueueFull or EngineStopped, and then never calls `listener`. A listener must return
        quickly, since every request waits for it; one that raises has its request aborted.
        """
        with self._wake:
            if not self._accepting:
                raise EngineStopped(f"the engine takes no requests: {self._error or 'it is stopped'}; restart it")
            if request.id in self._listeners:
                raise RequestRefused(f"request id {request.id} is in use; give every request its own id")
            if not request.arrival:
                request.arrival = time.monotonic()
            self.scheduler.add(request)
            self._listeners[request.id] = listener
            self._wake.notify()

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a request before the next step; no-op when it is over. The listener still gets its last Delivery."""
        with self._wake:  # and no notify: a loop that sleeps has no request left to abort
            self._abort(request_id, reason)

    def stats(self) -> LoopStats:
        with self._wake:
            began, now = self._step_began, time.monotonic()
            counters = self.scheduler.stats()
            return LoopStats(
                alive=self._accepting,
                error=self._error,
                step_age_s=None if began is None else now - began,
                **{field.name: getattr(counters, field.name) for field in fields(SchedulerStats)},
            )

    def _receive(self) -> bool:
        """Sleep until there is something to do, hand out what aborts left; False when stopping and all is done.

        The answer is taken under the lock that emptied the outbox: with no request alive, no abort can fill it again.
        """
        with self._wake:
            self._wake.wait_for(lambda: self._outbox or self.scheduler.has_work() or not self._accepting)
            deliveries, self._outbox = self._outbox, []
            more = self._accepting or self.scheduler.has_work()
        self._deliver(deliveries)
        return more

    def _schedule(self, before: Ticket | None) -> Batch | None:
        """The next step; beside one in flight only if that can be followed."""
        with self._wake:
            if before is not None:
                return self.scheduler.schedule_ahead() if before.followable else None
            batch = self.scheduler.schedule()
            self._step_began = None if batch is None else time.monotonic()
            return batch

    def _update(self, batch: Batch, output: StepOutput) -> list[Delivery]:
        with self._wake:
            deliveries = self.scheduler.update(batch, output)
            self._step_began = time.monotonic() if self.scheduler.in_flight else None
            return deliveries

    def _deliver(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            with self._wake:
                take = self._listeners.get if delivery.finish_reason is None else self._listeners.pop
                listener = take(delivery.request_id, None)
            if listener is None:
                continue  # it raised earlier and was dropped
            try:
                listener(delivery)
            except Exception:
                logger.exception("the listener of request %s failed; the request is aborted", delivery.request_id)
                with self._wake:
                    self._listeners.pop(delivery.request_id, None)
                    self.scheduler.abort(delivery.request_id)

    def _abort(self, request_id: str, reason: FinishReason) -> None:
        delivery = self.scheduler.abort(request_id, reason)
        if delivery is not None:
            self._outbox.append(delivery)

    def _fail(self, error: BaseException) -> list[Delivery]:
        with self._wake:
            self._accepting = False
            self._step_began = None
            self._error = f"{type(error).__name__}: {error}"
            left, self._outbox = self._outbox, []
            return left + self.scheduler.fail_all(self._error)
