"""Scheduler: which tokens of which requests run in the next step. Continuous batching, plain Python, no tensors.

Order is first come, first served, and two lists hold it: every request in `running` is older than every one in
`waiting`, and both are sorted by age. All policy follows from it:

* Grants go oldest first, and each request takes all it can of max_num_batched_tokens: one token when it decodes, the
  rest of its prompt when it does not. So a prompt that the budget cuts leaves nothing for a younger one, at most the
  youngest running request is in mid-prompt, and decode, being older, comes first in every step and is never starved by
  prefill. Setting decode's tokens aside explicitly was tried; it changed no batch.
* When KV blocks run out, the youngest running request is pre-empted for an older one: it frees everything and later
  recomputes from token 0, its generated tokens now part of the sequence. Swapping to the host was rejected: at the
  batch sizes served here recomputing is rare and cheap, and a state that moves is a state that can go stale.
* The youngest itself is never pre-empted for its own sake: it takes a smaller chunk or sits the step out and keeps what
  it computed, until it gets blocks or an older request needs its own.
* So the oldest request always advances, each request becomes the oldest at some time, and nobody starves. That needs
  every request to fit alone, which `add` checks.

`schedule`, run, `update`, in this order; between the last two, `schedule_ahead` may give the step that follows, so that
the device has work while the host books the one before. `abort` may come at any time.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable

from engine import segments
from engine.batch import Batch, Delivery, Sampled, Segment, StepOutput
from engine.cache.blocks import BlockPool
from engine.cache.states import StatePool
from engine.caution import Caution
from engine.config import EngineConfig
from engine.request import FinishReason, Request, Status
from engine.stats import SchedulerStats


class RequestRefused(ValueError):
    """The request can never be served as it is. The HTTP side answers 400 with this message."""


class QueueFull(RuntimeError):
    """Too many requests wait. The HTTP side answers 503; the same request may succeed later."""


class Scheduler:
    """Owns the life of every request between `add` and its last Delivery. Not thread-safe; loop.py holds the lock."""

    def __init__(
        self,
        config: EngineConfig,
        blocks: BlockPool,
        states: StatePool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = config.scheduler
        if self.limits.max_num_batched_tokens < self.limits.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens {self.limits.max_num_batched_tokens} is below max_num_seqs "
                f"{self.limits.max_num_seqs}: a full batch could not decode; raise the first or lower the second"
            )
        self.blocks = blocks
        self.states = states
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.caution = Caution(self.limits.max_num_batched_tokens, self.limits.max_num_seqs)
        self._clock = clock
        self._live: dict[str, Request] = {}
        self._flights: deque[tuple[Batch, tuple[Request, ...]]] = deque()
        """Steps that were scheduled and not updated, oldest first: two at most."""
        self._step = 0
        self._preemptions = 0
        self._out_of_memory = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._finished: Counter[FinishReason] = Counter()

    # What the outside asks for.

    def add(self, request: Request) -> None:
        """Queue a request. RequestRefused when it could never finish here, QueueFull when max_waiting wait already."""
        prompt, output = len(request.prompt_ids), request.params.max_tokens
        if request.id in self._live:
            raise RequestRefused(f"request id {request.id} is in use; give every request its own id")
        if prompt < 1:
            raise RequestRefused("the prompt has 0 tokens; at least 1 is needed")
        if output < 1:
            raise RequestRefused(f"max_tokens is {output}; at least 1 is needed")
        if prompt + output > self.limits.max_model_len:
            raise RequestRefused(
                f"{prompt} prompt tokens + max_tokens {output} = {prompt + output}, more than max_model_len "
                f"{self.limits.max_model_len}; shorten the prompt or lower max_tokens"
            )
        # The last sampled token is never run, so it needs no place in the cache.
        needed = self.blocks.blocks_for(prompt + output - 1)
        if needed > self.blocks.num_blocks:
            raise RequestRefused(
                f"{prompt} prompt tokens + max_tokens {output} need {needed} KV blocks of {self.blocks.block_tokens} "
                f"tokens, and the pool has {self.blocks.num_blocks}; lower max_tokens or raise --num-blocks"
            )
        if len(self.waiting) >= self.limits.max_waiting:
            raise QueueFull(f"{len(self.waiting)} requests are waiting, the limit is {self.limits.max_waiting}; retry")
        self._live[request.id] = request
        self.waiting.append(request)

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> Delivery | None:
        """End a request now; its last Delivery, or None when it is unknown or over (a second abort is a no-op).

        `reason` is STOP when a stop string ended it, which only the text side can see. A token that the step in flight
        samples for it is discarded by `update`, and its blocks and slot are kept until then.
        """
        request = self._live.get(request_id)
        if request is None:
            return None
        return self._finish(request, Delivery(request_id, (), finish_reason=reason))

    def fail_all(self, error: str) -> list[Delivery]:
        """End everything with ERROR: the runner is broken, and no step will run again."""
        self._land()
        return [self._break(request, error) for request in list(self._live.values())]

    def take_back(self, found: str) -> list[Delivery]:
        """The oldest step in flight ran out of memory, as `found` tells: void it and what was launched after it.

        It may have broken half-way: the recurrent state has moved in some layers and not in others, and running the
        step again on top of that would be wrong. So all of its requests go back to the queue and recompute from their
        tokens, as the pre-empted do, and so do those younger than any of them, or the lists would not be sorted by age.
        What runs next is narrower if it has to be (caution.py). The Delivery is of the request that cannot run alone.
        """
        self._out_of_memory += 1
        batch, requests = self._flights[0]
        touched = self._land()
        oldest = next((i for i, request in enumerate(self.running) if request in touched), len(self.running))
        for request in reversed(self.running[oldest:]):
            self._preempt(request)
        alive = [request for request in requests if request.status is not Status.FINISHED]
        blamed = self.caution.failed(batch.num_tokens, [r.id for r in alive]) if alive else None
        told = (
            f"a step with one token of this request alone ran out of memory, twice ({found}); expected to have room "
            "for it; ask for less (a shorter prompt, no log-probs), or start the server with a smaller --num-blocks"
        )
        return [self._break(request, told) for request in alive if request.id == blamed]

    def has_work(self) -> bool:
        return bool(self.running or self.waiting or self._flights)

    @property
    def in_flight(self) -> int:
        """Steps that were scheduled and not updated."""
        return len(self._flights)

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            running=len(self.running),
            waiting=len(self.waiting),
            kv_usage=self.blocks.usage,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            preemptions=self._preemptions,
            out_of_memory=self._out_of_memory,
            steps=self._step,
            finished={reason: self._finished[reason] for reason in FinishReason},
        )

    # Before a step.

    def schedule(self) -> Batch | None:
        """The next step, or None when there is nothing to run. RuntimeError while a step is in flight."""
        if self._flights:
            raise RuntimeError(f"step {self._flights[0][0].step} is in flight; update() it before scheduling the next")
        if not self.has_work():
            return None
        grants = self._grant_suspect() if self.caution.suspects else []
        if not grants:
            # A limit narrowed by a failed step is one of chunks: what decodes has its token, as it always has.
            grants, budget = self._grant_running(max(self.caution.tokens, len(self.running)))
            grants += self._admit(budget)
        if not grants:
            raise RuntimeError(
                f"{len(self.running)} running and {len(self.waiting)} waiting requests, and none can advance with "
                f"{self.blocks.num_free} KV blocks and {self.states.num_free} state slots free; something leaked"
            )
        return self._launch(tuple(segments.of(*grant) for grant in grants), tuple(request for request, _ in grants))

    def schedule_ahead(self) -> Batch | None:
        """The step after the one in flight, its token ids still UNKNOWN; None where what it holds depends on them.

        It is the same requests one token on, less those that reach max_tokens: nothing is admitted, pre-empted or
        prefilled, so nothing has to be taken back. With requests waiting it is None, or they would wait one step more.
        A request that the id in flight ends (a stop id, an abort) runs one step in vain: `update` discards the result,
        and its blocks and slot are kept until then.
        """
        if len(self._flights) != 1 or self.waiting:
            return None
        batch, requests = self._flights[0]
        alive = [
            (row, segment, request)
            for row, (segment, request) in enumerate(zip(batch.segments, requests, strict=True))
            if request.status is not Status.FINISHED
        ]
        if len(alive) < len(self.running) or not all(segment.sample for _, segment, _ in alive):
            return None
        going = [entry for entry in alive if len(entry[2].output_ids) + 1 < entry[2].params.max_tokens]
        for _, segment, request in going:
            if not self.blocks.extend(request.block_ids, segment.position + len(segment.token_ids) + 1):
                return None  # what the others got is what they need next anyway
        if not going:
            return None
        following = tuple(segments.following(row, segment, request) for row, segment, request in going)
        return self._launch(following, tuple(request for _, _, request in going))

    def _launch(self, parts: tuple[Segment, ...], requests: tuple[Request, ...]) -> Batch:
        batch = Batch(self._step, parts)
        self._step += 1
        self._flights.append((batch, requests))
        self.states.launch(batch.step, (segment.request_id for segment in parts))
        return batch

    def _grant_running(self, budget: int) -> tuple[list[tuple[Request, int]], int]:
        """Tokens for what runs already, oldest first, and the budget that is left."""
        grants = []
        index = 0
        while index < len(self.running):  # its tail may be pre-empted on the way, never its head
            request = self.running[index]
            tokens = self._secure(request, min(request.total_tokens - request.computed_tokens, budget))
            if tokens:
                grants.append((request, tokens))
            budget -= tokens
            index += 1
        return grants, budget

    def _grant_suspect(self) -> list[tuple[Request, int]]:
        """The next chunk of one request that recomputes, alone: of the one that has begun, or else the queue's head."""
        for request in self.running:
            left = request.total_tokens - request.computed_tokens
            if left > 1 or request.id in self.caution.suspects:
                tokens = self._secure(request, min(left, self.caution.tokens))
                return [(request, tokens)] if tokens else []
        return self._admit(self.caution.tokens)

    def _secure(self, request: Request, tokens: int) -> int:
        """Get KV blocks for the next `tokens` tokens, from younger requests if need be; how many tokens it came to."""
        while not self.blocks.extend(request.block_ids, request.computed_tokens + tokens):
            youngest = self.running[-1]
            if youngest is request:
                capacity = (len(request.block_ids) + self.blocks.num_free) * self.blocks.block_tokens
                tokens = min(tokens, capacity - request.computed_tokens)
            else:
                self._preempt(youngest)
        return tokens

    def _admit(self, budget: int) -> list[tuple[Request, int]]:
        """Move requests from the queue's head to `running` while a slot, a budget and blocks for a chunk are there.

        Nobody overtakes the head: a short request that slipped past a long one could do so for ever. A pre-empted
        request waits until its whole sequence fits, since blocks for a chunk would only have it sent away again.
        """
        grants = []
        while self.waiting and budget > 0 and len(self.running) < self.caution.sequences and self.states.num_free:
            request = self.waiting[0]
            tokens = min(request.total_tokens, budget)
            must_fit = request.total_tokens if request.preemptions else tokens
            if self.blocks.blocks_for(must_fit) > self.blocks.num_free:
                break
            self.running.append(self.waiting.popleft())
            request.status = Status.RUNNING
            request.state_slot = self.states.assign(request.id)
            self.blocks.extend(request.block_ids, tokens)
            if request.first_scheduled is None:
                request.first_scheduled = self._clock()
            grants.append((request, tokens))
            budget = 0 if self.caution.suspects else budget - tokens
        return grants

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.waiting.appendleft(request)
        request.status = Status.WAITING
        request.preemptions += 1
        request.computed_tokens = 0
        self._preemptions += 1
        self._release(request)

    # After a step.

    def update(self, batch: Batch, output: StepOutput) -> list[Delivery]:
        """Book what the runner made of `batch`. ValueError when it is not the oldest in flight or `output` not its own.

        A sampled token belongs to a (request, step) pair. Requests that ended since `schedule` are recognised as the
        objects that were launched, not by id, so a new request under an old id cannot receive a dead one's token.
        """
        if not self._flights or self._flights[0][0] is not batch:
            raise ValueError(
                f"step {batch.step} is not in flight, or not the oldest; update() takes every scheduled step once and "
                "in order"
            )
        if output.step != batch.step or len(output.sampled) != len(batch.segments):
            raise ValueError(
                f"the runner answered step {output.step} with {len(output.sampled)} results, expected step "
                f"{batch.step} with {len(batch.segments)}"
            )
        for segment, sampled in zip(batch.segments, output.sampled, strict=True):
            if sampled.request_id != segment.request_id or (sampled.token_id is not None) is not segment.sample:
                raise ValueError(
                    f"the runner answered token {sampled.token_id} of {sampled.request_id} where step {batch.step} "
                    f"has {segment.request_id} with sample={segment.sample}"
                )
        _, requests = self._flights.popleft()
        self.states.complete(batch.step)
        self.caution.passed(batch.segments)
        deliveries = []
        for request, segment, sampled in zip(requests, batch.segments, output.sampled, strict=True):
            if request.status is Status.FINISHED:
                if not self._flies(request):
                    self._release(request)
                continue
            delivery = self._book(request, segment, sampled)
            if delivery is not None:
                deliveries.append(delivery)
        return deliveries

    def _book(self, request: Request, segment: Segment, sampled: Sampled) -> Delivery | None:
        request.computed_tokens = segment.position + len(segment.token_ids)
        prompt_logprobs = sampled.prompt_logprobs[max(0, request.prompt_logprobs_sent - segment.position) :]
        request.prompt_logprobs_sent += len(prompt_logprobs)
        if sampled.token_id is None:
            return Delivery(request.id, (), prompt_logprobs=prompt_logprobs) if prompt_logprobs else None
        if request.first_token is None:
            request.first_token = self._clock()
            self._prompt_tokens += len(request.prompt_ids)
        self._generation_tokens += 1
        request.output_ids.append(sampled.token_id)
        delivery = Delivery(
            request.id,
            (sampled.token_id,),
            () if sampled.logprobs is None else (sampled.logprobs,),
            prompt_logprobs,
            _finish_reason(request),
        )
        return delivery if delivery.finish_reason is None else self._finish(request, delivery)

    def _finish(self, request: Request, last: Delivery) -> Delivery:
        """The only way out, whatever the reason. Memory that a step in flight still writes is released by `update`."""
        assert last.finish_reason is not None
        (self.running if request.status is Status.RUNNING else self.waiting).remove(request)
        del self._live[request.id]
        self.caution.ended(request.id, blamed=last.finish_reason is FinishReason.ERROR, left=len(self._live))
        request.status = Status.FINISHED
        request.finish_reason = last.finish_reason
        request.finished = self._clock()
        self._finished[last.finish_reason] += 1
        if not self._flies(request):
            self._release(request)
        return last

    def _break(self, request: Request, error: str) -> Delivery:
        return self._finish(request, Delivery(request.id, (), finish_reason=FinishReason.ERROR, error=error))

    def _land(self) -> set[Request]:
        """No step is in flight any more, and none is booked; the requests they were of."""
        flown = {request for _, requests in self._flights for request in requests}
        while self._flights:
            self.states.complete(self._flights.popleft()[0].step)
        for request in flown:
            if request.status is Status.FINISHED:
                self._release(request)
        return flown

    def _flies(self, request: Request) -> bool:
        """Whether a step in flight still writes its memory."""
        return any(request in requests for _, requests in self._flights)

    def _release(self, request: Request) -> None:
        if request.state_slot is None:
            return  # it never left the queue
        self.blocks.free(request.block_ids)
        self.states.release(request.id)
        request.block_ids.clear()
        request.state_slot = None


def _finish_reason(request: Request) -> FinishReason | None:
    """Whether the newest token ends the request. Stop ids count from min_tokens on and win over the length limit."""
    params, count = request.params, len(request.output_ids)
    if count >= params.min_tokens:
        newest = request.output_ids[-1]
        if newest in params.stop_token_ids or (newest in request.eos_ids and not params.ignore_eos):
            return FinishReason.STOP
    return FinishReason.LENGTH if count >= params.max_tokens else None
