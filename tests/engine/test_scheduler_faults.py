"""Faults that hybrid engines have shipped with, planted one by one: the model must see each, or it proves little."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from engine.batch import Batch, Delivery, Segment, StepOutput
from engine.cache.blocks import BlockPool
from engine.cache.errors import PoolError
from engine.request import FinishReason, Request
from engine.scheduler import Scheduler
from tests.engine.memory_model import crowd, play


class ForgetsZeroState(Scheduler):
    def schedule(self) -> Batch | None:
        return _amend(self, super().schedule(), lambda segment: replace(segment, zero_state=False))


class ZeroesOnlyTheFirstTime(Scheduler):
    """A pre-empted request recomputes its KV on top of whatever the slot's last owner left."""

    def schedule(self) -> Batch | None:
        def fresh_only(segment: Segment) -> Segment:
            again = self._live[segment.request_id].preemptions > 0
            return replace(segment, zero_state=segment.zero_state and not again)

        return _amend(self, super().schedule(), fresh_only)


class ResumesWithStaleState(Scheduler):
    """Pre-emption frees the memory but believes that it is still computed."""

    def _preempt(self, request: Request) -> None:
        computed = request.computed_tokens
        super()._preempt(request)
        request.computed_tokens = computed


class ForgetsGeneratedTokens(Scheduler):
    """Recomputes the prompt only."""

    def _preempt(self, request: Request) -> None:
        super()._preempt(request)
        request.output_ids.clear()


class ReleasesInFlight(Scheduler):
    """Gives memory back while the step that writes it still runs."""

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> Delivery | None:
        request = self._live.get(request_id)
        delivery = super().abort(request_id, reason)
        if request is not None:
            self._release(request)
        return delivery


class DeliversToTheDead(Scheduler):
    """Books the token of a request that ended while its step ran."""

    def update(self, batch: Batch, output: StepOutput) -> list[Delivery]:
        late = [
            Delivery(sampled.request_id, (sampled.token_id,))
            for sampled in output.sampled
            if sampled.request_id not in self._live and sampled.token_id is not None
        ]
        return super().update(batch, output) + late


class LeaksOnAbort(Scheduler):
    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> Delivery | None:
        request = self._live.get(request_id)
        if request is not None and request.block_ids:
            request.block_ids.pop()
        return super().abort(request_id, reason)


class NewestFirst(Scheduler):
    def add(self, request: Request) -> None:
        super().add(request)
        self.waiting.rotate(1)


class PrefillFirst(Scheduler):
    """Lets decode wait while any prompt is being read."""

    def schedule(self) -> Batch | None:
        batch = super().schedule()
        if batch is None or not (prefill := [s for s in batch.segments if len(s.token_ids) > 1]):
            return batch
        requests = {r.id: r for r in self.running}
        self._flights[-1] = (
            replace(batch, segments=tuple(prefill)),
            tuple(requests[s.request_id] for s in prefill),
        )
        return self._flights[-1][0]


class IgnoresTheBudget(Scheduler):
    def _admit(self, budget: int) -> list[tuple[Request, int]]:
        return super()._admit(budget + 4)


class ReleasesUnderTheStepAhead(Scheduler):
    """Frees what a request held when its token ends it, though the step after it was submitted and writes there."""

    def _flies(self, _request: Request) -> bool:
        return False


class FollowsTheLastToken(Scheduler):
    """Runs on past max_tokens, since it does not count the token in flight."""

    def schedule_ahead(self) -> Batch | None:
        for request in self.running:
            request.params = replace(request.params, max_tokens=request.params.max_tokens + 1)
        batch = super().schedule_ahead()
        for request in (*self.running, *self.waiting):
            request.params = replace(request.params, max_tokens=request.params.max_tokens - 1)
        return batch


class FeedsTheWrongRow(Scheduler):
    """Takes its ids in the order of the new step, not from the rows they were sampled in."""

    def schedule_ahead(self) -> Batch | None:
        batch = super().schedule_ahead()
        if batch is None:
            return None
        return _amend(
            self,
            batch,
            lambda segment: replace(segment, feed=[s.request_id for s in batch.segments].index(segment.request_id)),
        )


class LetsOthersWait(Scheduler):
    """Goes on with what runs while a request waits for a free place."""

    def schedule_ahead(self) -> Batch | None:
        waiting, self.waiting = self.waiting, type(self.waiting)()
        try:
            return super().schedule_ahead()
        finally:
            self.waiting = waiting


class HandsOutTwice(BlockPool):
    """Every freed block comes back to two owners."""

    def free(self, ids: Iterable[int]) -> None:
        freed = list(ids)
        super().free(freed)
        self._free += freed[:1]


def _amend(scheduler: Scheduler, batch: Batch | None, change: Callable[[Segment], Segment]) -> Batch | None:
    if batch is None:
        return batch
    amended = replace(batch, segments=tuple(map(change, batch.segments)))
    scheduler._flights[-1] = amended, scheduler._flights[-1][1]
    return amended


@pytest.mark.parametrize(
    ("fault", "error", "seen_as"),
    [
        (ForgetsZeroState, AssertionError, "generated other tokens than alone"),
        (ZeroesOnlyTheFirstTime, AssertionError, "generated other tokens than alone"),
        (ResumesWithStaleState, AssertionError, "sample is wrong at"),
        (ForgetsGeneratedTokens, AssertionError, "was delivered other tokens than it generated"),
        (ReleasesInFlight, PoolError, "released while step"),
        (DeliversToTheDead, AssertionError, "was delivered to after its end"),
        (LeaksOnAbort, AssertionError, "KV blocks leaked"),
        (NewestFirst, AssertionError, "not first come, first served"),
        (PrefillFirst, AssertionError, r"(the oldest request does not advance|ready to decode and got no token)"),
        (IgnoresTheBudget, AssertionError, "token budget exceeded"),
    ],
)
def test_the_model_catches(fault: type[Scheduler], error: type[Exception], seen_as: str) -> None:
    with pytest.raises(error, match=seen_as):
        play(crowd(abort_every=2), fault)


@pytest.mark.parametrize(
    ("fault", "error", "seen_as"),
    [
        (ReleasesUnderTheStepAhead, PoolError, "released while step"),
        (FollowsTheLastToken, AssertionError, "it runs past max_tokens"),
        (FeedsTheWrongRow, AssertionError, "it takes another request's id"),
        (LetsOthersWait, AssertionError, "it makes those who wait wait longer"),
    ],
)
def test_the_model_catches_a_fault_of_steps_ahead(fault: type[Scheduler], error: type[Exception], seen_as: str) -> None:
    with pytest.raises(error, match=seen_as):
        play(crowd(abort_every=2, ahead=True), fault)


def test_the_model_catches_a_block_with_two_owners() -> None:
    with pytest.raises((AssertionError, PoolError), match=r"(share a KV block|is not in use)"):
        play(crowd(), make_blocks=HandsOutTwice)
