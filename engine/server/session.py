"""One HTTP request ↔ its engine requests: submit, carry deliveries across threads, abort what nobody waits for."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from engine.batch import Delivery
from engine.loop import EngineStopped
from engine.request import FinishReason
from engine.scheduler import QueueFull, RequestRefused
from engine.server.choice import Choice, Piece
from engine.server.errors import ApiError, not_ready
from engine.server.service import Service


class Mailbox:
    """Hands items from the engine's thread to an event loop, waking it once per burst instead of once per item."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: deque[tuple[Callable[[Delivery], None], Delivery]] = deque()
        self._scheduled = False

    def post(self, take: Callable[[Delivery], None], delivery: Delivery) -> None:
        """Any thread. Append first, then look at the flag: the drain clears it before it looks for items."""
        self._items.append((take, delivery))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._scheduled = False
        while self._items:
            take, delivery = self._items.popleft()
            take(delivery)


class Session:
    """Iterate it for (choice, piece) pairs in the order the engine delivered them, until every choice is finished."""

    def __init__(self, service: Service, choices: Sequence[Choice]) -> None:
        self.choices = choices
        self._service, self._metrics = service, service.metrics
        self._engine, _ = service.require()
        if service.mailbox is None:
            service.mailbox = Mailbox(asyncio.get_running_loop())
        self._mailbox = service.mailbox
        self._queue: asyncio.Queue[tuple[Choice, Piece] | None] = asyncio.Queue()
        self._submitted: list[Choice] = []
        self._open = len(choices)
        self._times: dict[int, tuple[float, float]] = {}
        """By choice: time.monotonic() of its first and of its latest delivery with tokens."""
        self.gone = False
        """The client has left, or the server is closing: nobody reads the rest."""

    def submit(self) -> None:
        """All choices or none. Raises ApiError 503 where the queue is full or the engine stopped, 400 where refused."""
        limit = self._service.config.scheduler.max_waiting
        room = limit - self._engine.stats().waiting
        try:
            if len(self.choices) > limit:
                raise RequestRefused(
                    f"prompts times `n` make {len(self.choices)} sequences, and the queue takes {limit} at most "
                    "(--max-waiting); send fewer at once"
                )
            if len(self.choices) > room:
                raise QueueFull(f"{len(self.choices)} more requests do not fit the queue, which takes {room} now")
            for choice in self.choices:
                choice.request.arrival = time.monotonic()
                self._engine.submit(choice.request, self._listener(choice))
                self._submitted.append(choice)
        except (QueueFull, EngineStopped, RequestRefused) as error:
            self.close()
            raise _refusal(error) from error
        self._service.sessions.add(self)

    async def __aiter__(self) -> AsyncIterator[tuple[Choice, Piece]]:
        while self._open and not self.gone:
            item = await self._queue.get()
            if item is None:
                return
            yield item
            if item[1].finish_reason is not None:
                self._open -= 1

    def leave(self) -> None:
        """The client is gone: free its slots now and end the iteration."""
        self.gone = True
        self.close()
        self._queue.put_nowait(None)

    def close(self) -> None:
        """Abort whatever is unfinished. Idempotent; an id that the engine does not know is no error there."""
        self._service.sessions.discard(self)
        for choice in self._submitted:
            if not choice.finished:
                choice.finished = True
                self._engine.abort(choice.request.id)
                self._metrics.finished("abort")

    def _listener(self, choice: Choice) -> Callable[[Delivery], None]:
        post = self._mailbox.post

        def take(delivery: Delivery) -> None:
            self._take(choice, delivery)

        return lambda delivery: post(take, delivery)

    def _take(self, choice: Choice, delivery: Delivery) -> None:
        piece = choice.advance(delivery)
        if piece is None:
            return
        self._observe(choice, piece)
        if choice.finished and delivery.finish_reason is None:
            self._engine.abort(choice.request.id, FinishReason.STOP)  # a stop string: the engine cannot know
        self._queue.put_nowait((choice, piece))

    def _observe(self, choice: Choice, piece: Piece) -> None:
        now, metrics, request = time.monotonic(), self._metrics, choice.request
        first, latest = self._times.get(choice.index, (now, now))
        if piece.token_ids:
            if choice.index not in self._times:
                metrics.ttft_s.observe(now - request.arrival)
            else:
                metrics.itl_s.observe((now - latest) / len(piece.token_ids))
            self._times[choice.index] = (first, now)
        if piece.finish_reason is None:
            return
        metrics.finished(piece.finish_reason)
        if piece.error is None:
            metrics.e2el_s.observe(now - request.arrival)
            if request.first_scheduled is not None:
                metrics.queue_s.observe(request.first_scheduled - request.arrival)
            metrics.prompt_tokens.observe(len(request.prompt_ids))
            metrics.generation_tokens.observe(choice.tokens)
            if choice.tokens > 1:
                metrics.tpot_s.observe((now - first) / (choice.tokens - 1))


def _refusal(error: QueueFull | EngineStopped | RequestRefused) -> ApiError:
    if isinstance(error, QueueFull):
        return ApiError(f"{error}; try later", status=503, code="queue_full", headers={"retry-after": "1"})
    if isinstance(error, EngineStopped):
        return not_ready(str(error))
    return ApiError(str(error), code="refused")
