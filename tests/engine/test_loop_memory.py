"""Steps that run out of memory: whoever can run goes on with the tokens of an undisturbed run, the rest ends alone."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from engine.batch import Batch
from engine.kernels.library import KernelError
from engine.request import FinishReason, Request
from tests.engine.exhausting import SAID, Exhausted, Fails, alone, ask, idle, loop_over, serve
from tests.engine.looping import Inbox

CROWD = [(5, 6), (3, 9), (11, 4), (1, 12), (20, 5), (7, 7)]
"""Prompt and output tokens; two more than run at once."""


def crowd() -> list[Request]:
    return [ask(i, *sizes) for i, sizes in enumerate(CROWD)]


def at(*steps: int, place: str = "submit") -> Fails:
    return lambda batch, where: where == place and batch.step in steps


def of(name: str, place: str = "submit", end: int = 0) -> Fails:
    """Every step of that request that comes to the token `end`."""

    def fails(batch: Batch, where: str) -> bool:
        return where == place and any(
            s.request_id == name and s.position + len(s.token_ids) >= end for s in batch.segments
        )

    return fails


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("place", ["submit", "finish"])
@pytest.mark.parametrize("steps", [(0,), (1,), (4,), (4, 5), (7,), (2, 3, 4, 5), (9, 11, 13)], ids=str)
def test_everybody_goes_on_with_their_own_tokens(place: str, steps: tuple[int, ...], ahead: bool) -> None:
    runner = Exhausted(at(*steps, place=place), ahead=ahead)
    loop, requests = loop_over(runner), crowd()
    inboxes = serve(loop, *requests)
    assert [inbox.tokens for inbox in inboxes] == [alone(r) for r in requests]
    assert {inbox.reason for inbox in inboxes} == {FinishReason.LENGTH}
    # Under lookahead a step submitted behind one that broke is void unread.
    assert len(steps) - ahead * (len(steps) // 2) <= runner.recovered <= len(steps)
    assert loop.stats().alive
    assert loop.stats().error is None
    assert loop.stats().preemptions >= 1
    loop.stop()
    assert idle(loop)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(SAID),
        MemoryError(),
        KernelError("engine_rows((3, 4)) returned CUDA error 2: see cudaError_t"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:40],
)
def test_all_that_says_out_of_memory_is_survived(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    runner = Exhausted(at(1), error=lambda _: error)  # type: ignore[arg-type]
    loop = loop_over(runner)
    (inbox,) = serve(loop, ask(1))
    assert inbox.tokens == alone(ask(1))
    loop.stop()
    (told,) = [r.getMessage() for r in caplog.records]
    assert re.match(rf"step 1 of 1 tokens in 1 requests ran out of memory \({type(error).__name__}", told)
    assert "they are recomputed; if it happens again" in told
    assert "\n" not in told


def test_another_error_beside_it_still_ends_all() -> None:
    runner = Exhausted(at(1), error=RuntimeError)
    runner.error = lambda _: RuntimeError("CUDA error: an illegal memory access was encountered")  # type: ignore
    loop = loop_over(runner)
    (inbox,) = serve(loop, ask(1))
    assert inbox.reason is FinishReason.ERROR
    assert not loop.stats().alive


def test_a_chunk_that_is_too_large_beside_decodes_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    """The long prompt of the one that waits is read behind the answers that run; 16 tokens a step are too many."""

    def fails(batch: Batch, where: str) -> bool:
        return where == "submit" and len(batch.segments) > 1 and batch.num_tokens > 9

    runner = Exhausted(fails)
    loop, requests = loop_over(runner), [ask(0, 4, 20), ask(1, 4, 20), ask(2, 60, 5)]
    inboxes = serve(loop, *requests)
    assert [inbox.tokens for inbox in inboxes] == [alone(r) for r in requests]
    assert any(len(b.segments) == 3 and b.num_tokens > 3 for b in runner.batches), "the prompt waited for the answers"
    assert runner.recovered == sum("ran out of memory" in r.getMessage() for r in caplog.records) <= 4
    loop.stop()


@pytest.mark.parametrize("ahead", [False, True])
def test_too_many_at_once_are_fewer_from_then_on(ahead: bool) -> None:
    runner = Exhausted(lambda batch, where: where == "submit" and len(batch.segments) > 2, ahead=ahead)
    loop, requests = loop_over(runner), crowd()
    inboxes = serve(loop, *requests)
    assert [inbox.tokens for inbox in inboxes] == [alone(r) for r in requests]
    assert max(Counter(len(b.segments) for b in runner.batches)) > 2
    # What it costs goes by the requests that end, never by the tokens.
    assert runner.recovered <= 4 + 2 * len(requests)
    loop.stop()
    assert idle(loop)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("place", ["submit", "finish"])
@pytest.mark.parametrize("name", ["r0", "r2", "r5"])
def test_one_that_cannot_run_alone_ends_alone(place: str, name: str, ahead: bool) -> None:
    runner = Exhausted(of(name, place), ahead=ahead)
    loop, requests = loop_over(runner), crowd()
    inboxes = serve(loop, *requests)
    for request, inbox in zip(requests, inboxes, strict=True):
        if request.id == name:
            assert (inbox.tokens, inbox.reason) == ([], FinishReason.ERROR)
            told = str(inbox.deliveries[-1].error)
            assert told.startswith("a step with one token of this request alone ran out of memory, twice")
            assert SAID in told
            assert "expected to have room for it; ask for less" in told
            assert "\n" not in told
        else:
            assert (inbox.tokens, inbox.reason) == (alone(request), FinishReason.LENGTH), request.id
    assert loop.stats().alive
    assert loop.stats().finished[FinishReason.ERROR] == 1
    runner.fails = at()
    later, inbox = ask(9, 30, 10), Inbox()
    loop.submit(later, inbox)
    assert inbox.wait().tokens == alone(later)
    loop.stop()
    assert idle(loop)
    caution = loop.scheduler.caution
    assert (caution.tokens, caution.sequences, caution.suspects) == (16, 4, set())


def test_one_that_fails_while_it_decodes_keeps_what_it_had() -> None:
    runner = Exhausted(of("r1", end=6))
    loop, requests = loop_over(runner), crowd()
    inboxes = serve(loop, *requests)
    assert inboxes[1].reason is FinishReason.ERROR
    assert inboxes[1].tokens == alone(requests[1])[:3]
    others = [i for i in range(len(requests)) if i != 1]
    assert [inboxes[i].tokens for i in others] == [alone(requests[i]) for i in others]
    loop.stop()


def test_what_flew_before_the_step_that_broke_is_delivered() -> None:
    """Step 2 is submitted while step 1 is in flight, and breaks: the id of step 1 counts."""
    runner = Exhausted(at(2), ahead=True)
    loop = loop_over(runner)
    (inbox,) = serve(loop, ask(1))
    assert runner.events[:5] == [("submit", 0), ("finish", 0), ("submit", 1), ("submit", 2), ("finish", 1)]
    again = runner.batches[3].segments[0]
    assert (again.position, again.zero_state, len(again.output_ids)) == (0, True, 6)  # the list is the request's own
    assert len(again.token_ids) == 5 + 2
    assert inbox.tokens == alone(ask(1))
    loop.stop()


def test_what_flew_behind_the_step_that_broke_is_void() -> None:
    """Step 1 breaks when it is read; step 2, behind it on the device, is never read, and its ids are made again."""
    runner = Exhausted(at(1, place="finish"), ahead=True)
    loop = loop_over(runner)
    (inbox,) = serve(loop, ask(1))
    assert runner.events[2:5] == [("submit", 1), ("submit", 2), ("finish", 1)]
    assert ("finish", 2) not in runner.events
    assert len(runner.batches[3].segments[0].token_ids) == 5 + 1
    assert inbox.tokens == alone(ask(1))
    loop.stop()


@pytest.mark.parametrize("place", ["submit", "finish"])
def test_one_that_leaves_in_the_step_that_breaks_is_over(place: str) -> None:
    left: list[str] = []

    def fails(batch: Batch, where: str) -> bool:
        if where != place or batch.step != 3:
            return False
        loop.abort("r1")
        left.append("r1")
        return True

    runner = Exhausted(fails)
    loop, requests = loop_over(runner), crowd()[:3]
    inboxes = serve(loop, *requests)
    assert left
    assert [inbox.reason for inbox in inboxes] == [FinishReason.LENGTH, FinishReason.ABORT, FinishReason.LENGTH]
    assert [inboxes[i].tokens for i in (0, 2)] == [alone(requests[i]) for i in (0, 2)]
    loop.stop()
    assert idle(loop)


sizes = st.tuples(st.integers(1, 25), st.integers(1, 12))


@settings(max_examples=150, deadline=None)
@given(
    crowd=st.lists(sizes, min_size=1, max_size=7),
    broken=st.lists(st.sampled_from(["", "", "submit", "finish"]), max_size=40),
    doomed=st.none() | st.integers(0, 6),
    most=st.integers(1, 12),
    blocks=st.integers(10, 20),
    ahead=st.booleans(),
)
def test_any_crowd_in_any_shortage(
    crowd: list[tuple[int, int]], broken: list[str], doomed: int | None, most: int, blocks: int, ahead: bool
) -> None:
    """Some steps break by chance, all steps of one request do, and so does every step of more tokens than `most`."""

    def fails(batch: Batch, where: str) -> bool:
        chance = batch.step < len(broken) and broken[batch.step] == where
        too_large = where == "submit" and batch.num_tokens > most
        return chance or too_large or (doomed is not None and of(f"r{doomed}", "finish")(batch, where))

    runner = Exhausted(fails, ahead=ahead)
    loop = loop_over(runner, blocks=blocks)
    requests = [ask(i, *size) for i, size in enumerate(crowd)]
    inboxes = serve(loop, *requests)
    loop.stop()
    for request, inbox in zip(requests, inboxes, strict=True):
        expected = alone(request)
        assert inbox.tokens == expected[: len(inbox.tokens)]
        if inbox.reason is FinishReason.ERROR:
            assert request.id == f"r{doomed}" or broken, "it could run alone"
        else:
            assert inbox.tokens == expected
            assert request.id != f"r{doomed}"
    assert not runner.model.foreign_reads
    assert idle(loop)
    caution = loop.scheduler.caution
    assert (caution.tokens, caution.sequences, caution.suspects) == (16, 4, set())
    event(f"ended: {sum(inbox.reason is FinishReason.ERROR for inbox in inboxes)}")
