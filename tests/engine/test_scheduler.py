"""The scheduler's rules one by one: admission, chunking, pre-emption, ends, aborts, refusals, counters."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.batch import Batch, Delivery, Sampled, StepOutput, TokenLogprobs
from engine.cache.blocks import BlockPool
from engine.cache.states import StatePool
from engine.config import EngineConfig, ModelConfig, SchedulerConfig
from engine.request import FinishReason, Request, SamplingParams, Status
from engine.scheduler import QueueFull, RequestRefused, Scheduler

EOS = frozenset({0})


def make(
    *, seqs: int = 4, budget: int = 16, blocks: int = 64, block_tokens: int = 4, waiting: int = 8, max_len: int = 128
) -> Scheduler:
    limits = SchedulerConfig(seqs, budget, max_len, waiting)
    config = EngineConfig(ModelConfig(Path("model")), scheduler=limits)
    ticks = itertools.count(1)
    return Scheduler(config, BlockPool(blocks, block_tokens), StatePool(seqs), clock=lambda: float(next(ticks)))


def ask(name: str, prompt: int = 3, max_tokens: int = 8, **params: object) -> Request:
    return Request(name, tuple(range(1, prompt + 1)), replace(SamplingParams(max_tokens), **params), EOS)


def answer(batch: Batch, token: Callable[[str], int] = lambda _: 5) -> StepOutput:
    return StepOutput(
        batch.step, tuple(Sampled(s.request_id, token(s.request_id) if s.sample else None) for s in batch.segments)
    )


def step(scheduler: Scheduler, token: Callable[[str], int] = lambda _: 5) -> tuple[Batch, list[Delivery]]:
    batch = scheduler.schedule()
    assert batch is not None
    return batch, scheduler.update(batch, answer(batch, token))


def shape(batch: Batch) -> list[tuple[str, int, int]]:
    return [(s.request_id, s.position, len(s.token_ids)) for s in batch.segments]


# Batching and chunking.


def test_nothing_to_do_is_no_step() -> None:
    scheduler = make()
    assert scheduler.schedule() is None
    assert not scheduler.has_work()


def test_a_prompt_is_prefilled_then_decoded_token_by_token() -> None:
    scheduler = make()
    scheduler.add(ask("a", prompt=3, max_tokens=3))
    batches = [step(scheduler)[0] for _ in range(3)]
    assert [shape(b) for b in batches] == [[("a", 0, 3)], [("a", 3, 1)], [("a", 4, 1)]]
    assert [b.segments[0].zero_state for b in batches] == [True, False, False]
    assert not scheduler.has_work()


def test_a_long_prompt_is_cut_into_chunks_and_only_the_last_one_samples() -> None:
    scheduler = make(budget=4)
    scheduler.add(ask("a", prompt=10))
    batches = [step(scheduler)[0] for _ in range(3)]
    assert [shape(b) for b in batches] == [[("a", 0, 4)], [("a", 4, 4)], [("a", 8, 2)]]
    assert [b.segments[0].sample for b in batches] == [False, False, True]
    assert [b.segments[0].token_ids for b in batches] == [(1, 2, 3, 4), (5, 6, 7, 8), (9, 10)]


def test_decode_comes_first_and_prefill_gets_the_rest_of_the_budget() -> None:
    scheduler = make(budget=6)
    scheduler.add(ask("a", prompt=2))
    step(scheduler)
    scheduler.add(ask("b", prompt=9))
    scheduler.add(ask("c", prompt=9))
    assert shape(step(scheduler)[0]) == [("a", 2, 1), ("b", 0, 5)]
    assert shape(step(scheduler)[0]) == [("a", 3, 1), ("b", 5, 4), ("c", 0, 1)]
    assert shape(step(scheduler)[0]) == [("a", 4, 1), ("b", 9, 1), ("c", 1, 4)]


def test_a_prompts_last_token_left_by_chunking_runs_among_the_decodes() -> None:
    scheduler = make(budget=4)
    scheduler.add(ask("a", prompt=5))
    step(scheduler)
    scheduler.add(ask("b", prompt=2))
    batch, _ = step(scheduler)
    assert shape(batch) == [("a", 4, 1), ("b", 0, 2)]
    assert batch.segments[0].sample


def test_no_more_run_than_there_are_slots() -> None:
    scheduler = make(seqs=2)
    for name in "abc":
        scheduler.add(ask(name, max_tokens=2))
    assert [s.request_id for s in step(scheduler)[0].segments] == ["a", "b"]
    step(scheduler)
    assert [s.request_id for s in step(scheduler)[0].segments] == ["c"]


def test_max_num_seqs_binds_where_there_are_more_slots() -> None:
    scheduler = make(seqs=2)
    scheduler.states = StatePool(8)
    for name in "abc":
        scheduler.add(ask(name))
    assert [s.request_id for s in step(scheduler)[0].segments] == ["a", "b"]


def test_fewer_slots_than_max_num_seqs_bind_too() -> None:
    scheduler = make(seqs=4)
    scheduler.states = StatePool(1)
    scheduler.add(ask("a"))
    scheduler.add(ask("b"))
    assert [s.request_id for s in step(scheduler)[0].segments] == ["a"]


def test_nobody_overtakes_a_request_that_waits_for_blocks() -> None:
    scheduler = make(blocks=4, block_tokens=4)
    scheduler.add(ask("a", prompt=7, max_tokens=2))
    step(scheduler)
    scheduler.add(ask("long", prompt=12, max_tokens=2))
    scheduler.add(ask("short", prompt=1, max_tokens=2))
    assert [s.request_id for s in step(scheduler)[0].segments] == ["a"]
    assert [s.request_id for s in step(scheduler)[0].segments] == ["long", "short"]


def test_block_tables_grow_only_when_a_token_needs_it() -> None:
    scheduler = make(block_tokens=4)
    scheduler.add(ask("a", prompt=3))
    assert [len(step(scheduler)[0].segments[0].block_ids) for _ in range(7)] == [1, 1, 2, 2, 2, 2, 3]


def test_one_step_is_in_flight_at_most() -> None:
    scheduler = make()
    scheduler.add(ask("a"))
    assert scheduler.schedule() is not None
    with pytest.raises(RuntimeError, match=r"step 0 is in flight; update\(\) it"):
        scheduler.schedule()


def test_memory_that_leaked_is_reported_instead_of_spinning() -> None:
    scheduler = make(blocks=4)
    scheduler.blocks.allocate(4)
    scheduler.add(ask("a"))
    with pytest.raises(
        RuntimeError, match="none can advance with 0 KV blocks and 4 state slots free; something leaked"
    ):
        scheduler.schedule()


# Pre-emption.


def _tight() -> Scheduler:
    """a and b fill four blocks of two tokens; the next token of a needs a fifth."""
    scheduler = make(blocks=4, block_tokens=2)
    scheduler.add(ask("a", prompt=3, max_tokens=5))
    scheduler.add(ask("b", prompt=3, max_tokens=5))
    step(scheduler)
    step(scheduler)
    return scheduler


def test_a_block_shortage_preempts_the_youngest() -> None:
    scheduler = _tight()
    victim = scheduler.running[-1]
    assert shape(step(scheduler)[0]) == [("a", 4, 1)]
    assert victim.id == "b"
    assert (victim.status, victim.computed_tokens, victim.block_ids, victim.state_slot) == (Status.WAITING, 0, [], None)
    assert victim.output_ids == [5, 5]
    assert scheduler.states.num_free == 3
    assert scheduler.stats().preemptions == victim.preemptions == 1


def test_a_preempted_request_recomputes_its_generated_tokens_on_a_cleared_state() -> None:
    scheduler = _tight()
    while scheduler.waiting or not scheduler.running or scheduler.running[0].id == "a":
        batch, deliveries = step(scheduler)
    (segment,) = batch.segments
    assert (segment.request_id, segment.position, segment.token_ids) == ("b", 0, (1, 2, 3, 5, 5))
    assert segment.zero_state
    assert segment.sample
    assert deliveries == [Delivery("b", (5,))]


def test_a_preempted_request_returns_only_when_all_of_it_fits() -> None:
    scheduler = make(seqs=2, budget=2, blocks=5, block_tokens=2)
    scheduler.add(ask("a", prompt=2, max_tokens=7))
    scheduler.add(ask("b", prompt=1, max_tokens=5))
    batches = [step(scheduler)[0] for _ in range(8)]
    assert shape(batches[4]) == [("a", 5, 1), ("b", 3, 1)]
    assert shape(batches[5]) == [("a", 6, 1)]  # the one block left over would take a chunk of b, not its five tokens
    assert shape(batches[6]) == [("a", 7, 1)]
    assert shape(batches[7]) == [("b", 0, 2)]


def test_the_youngest_sits_a_step_out_rather_than_losing_its_work() -> None:
    scheduler = make(blocks=5, block_tokens=2)
    scheduler.add(ask("a", prompt=4, max_tokens=3))
    scheduler.add(ask("b", prompt=4, max_tokens=3))
    step(scheduler)
    batch, _ = step(scheduler)
    assert shape(batch) == [("a", 4, 1)]
    assert scheduler.running[1].computed_tokens == 4
    assert scheduler.stats().preemptions == 0


def test_the_youngest_prefill_takes_the_chunk_that_fits() -> None:
    scheduler = make(budget=6, blocks=5, block_tokens=2)
    scheduler.add(ask("a", prompt=2, max_tokens=4))
    step(scheduler)
    scheduler.add(ask("b", prompt=8, max_tokens=2))
    assert shape(step(scheduler)[0]) == [("a", 2, 1), ("b", 0, 5)]
    assert shape(step(scheduler)[0]) == [("a", 3, 1), ("b", 5, 1)]


def test_prompt_logprobs_are_delivered_once_despite_recomputation() -> None:
    scheduler = make(budget=4, blocks=4, block_tokens=2)
    scheduler.add(ask("a", prompt=1, max_tokens=6))
    scheduler.add(ask("b", prompt=5, max_tokens=2, prompt_logprobs=0))
    seen: list[TokenLogprobs | None] = []
    while scheduler.has_work():
        batch = scheduler.schedule()
        assert batch is not None
        output = answer(batch)
        sampled = []
        for segment, result in zip(batch.segments, output.sampled, strict=True):
            if segment.params.prompt_logprobs is not None:
                chunk = range(segment.position, min(segment.position + len(segment.token_ids), len(segment.prompt_ids)))
                entries = tuple(TokenLogprobs(p, -1.0, 1, ()) if p else None for p in chunk)
                result = replace(result, prompt_logprobs=entries)
            sampled.append(result)
        for delivery in scheduler.update(batch, replace(output, sampled=tuple(sampled))):
            seen += delivery.prompt_logprobs
    assert [entry and entry.token_id for entry in seen] == [None, 1, 2, 3, 4]
    assert scheduler.stats().preemptions >= 1


# Ends.


@pytest.mark.parametrize(
    ("params", "sampled", "generated", "reason"),
    [
        ({}, [5, 0], 2, FinishReason.STOP),
        ({}, [5, 5, 5, 5], 4, FinishReason.LENGTH),
        ({"ignore_eos": True}, [0, 0, 0, 0], 4, FinishReason.LENGTH),
        ({"stop_token_ids": (7,)}, [5, 7], 2, FinishReason.STOP),
        ({"stop_token_ids": (7,), "ignore_eos": True}, [0, 7], 2, FinishReason.STOP),
        ({"min_tokens": 3, "stop_token_ids": (7,)}, [7, 7, 7], 3, FinishReason.STOP),
        ({"min_tokens": 4}, [0, 0, 0, 0], 4, FinishReason.STOP),
        ({}, [5, 5, 5, 0], 4, FinishReason.STOP),
    ],
    ids=["eos", "length", "ignore_eos", "stop id", "stop id beats ignore_eos", "min_tokens", "min = max", "eos at max"],
)
def test_how_a_request_ends(
    params: dict[str, object], sampled: list[int], generated: int, reason: FinishReason
) -> None:
    scheduler = make()
    request = ask("a", max_tokens=4, **params)
    scheduler.add(request)
    tokens = iter(sampled)
    deliveries: list[Delivery] = []
    while scheduler.has_work():
        deliveries += step(scheduler, lambda _: next(tokens))[1]
    assert [d.token_ids for d in deliveries] == [(t,) for t in sampled[:generated]]
    assert [d.finish_reason for d in deliveries] == [None] * (generated - 1) + [reason]
    assert (request.status, request.finish_reason) == (Status.FINISHED, reason)
    assert scheduler.blocks.num_free == scheduler.blocks.num_blocks
    assert scheduler.states.num_free == scheduler.states.num_slots


def test_logprobs_travel_with_their_token() -> None:
    scheduler = make()
    scheduler.add(ask("a", logprobs=1))
    batch = scheduler.schedule()
    assert batch is not None
    entry = TokenLogprobs(5, -0.5, 1, ((5, -0.5),))
    (delivery,) = scheduler.update(batch, StepOutput(0, (Sampled("a", 5, entry),)))
    assert delivery.logprobs == (entry,)


# Aborts.


def test_aborting_a_waiting_request_takes_it_out_of_the_queue() -> None:
    scheduler = make()
    scheduler.add(ask("a"))
    assert scheduler.abort("a") == Delivery("a", (), finish_reason=FinishReason.ABORT)
    assert not scheduler.has_work()


def test_aborting_a_running_request_frees_its_memory_at_once() -> None:
    scheduler = make()
    scheduler.add(ask("a"))
    step(scheduler)
    scheduler.abort("a")
    assert scheduler.blocks.num_free == scheduler.blocks.num_blocks
    assert scheduler.states.num_free == scheduler.states.num_slots


def test_aborting_in_flight_keeps_the_memory_until_the_step_is_over_and_drops_its_token() -> None:
    scheduler = make()
    scheduler.add(ask("a"))
    batch = scheduler.schedule()
    assert batch is not None
    assert scheduler.abort("a") is not None
    assert scheduler.blocks.num_free < scheduler.blocks.num_blocks
    assert scheduler.states.num_free < scheduler.states.num_slots
    assert scheduler.has_work()
    assert scheduler.update(batch, answer(batch)) == []
    assert scheduler.blocks.num_free == scheduler.blocks.num_blocks
    assert scheduler.states.num_free == scheduler.states.num_slots
    assert not scheduler.has_work()


def test_a_new_request_under_an_aborted_id_does_not_get_the_old_ones_token() -> None:
    scheduler = make()
    scheduler.add(ask("a"))
    batch = scheduler.schedule()
    assert batch is not None
    scheduler.abort("a")
    again = ask("a", prompt=2)
    scheduler.add(again)
    assert scheduler.update(batch, answer(batch)) == []
    assert again.output_ids == []
    assert step(scheduler, lambda _: 9)[1] == [Delivery("a", (9,))]


def test_a_second_abort_and_a_late_abort_are_no_ops() -> None:
    scheduler = make()
    scheduler.add(ask("a", max_tokens=1))
    scheduler.add(ask("b"))
    step(scheduler)
    assert scheduler.abort("a") is None
    assert scheduler.abort("b") is not None
    assert scheduler.abort("b") is None
    assert scheduler.abort("never seen") is None


def test_a_stop_string_found_by_the_text_side_counts_as_stop() -> None:
    scheduler = make()
    scheduler.add(ask("a"))
    step(scheduler)
    assert scheduler.abort("a", FinishReason.STOP) == Delivery("a", (), finish_reason=FinishReason.STOP)
    assert scheduler.stats().finished[FinishReason.STOP] == 1


def test_fail_all_ends_running_waiting_and_in_flight_requests() -> None:
    scheduler = make(seqs=2)
    for name in "abcd":
        scheduler.add(ask(name))
    scheduler.schedule()
    scheduler.abort("a")
    deliveries = scheduler.fail_all("device lost")
    assert deliveries == [
        Delivery(name, (), finish_reason=FinishReason.ERROR, error="device lost") for name in ("b", "c", "d")
    ]
    assert not scheduler.has_work()
    assert scheduler.blocks.num_free == scheduler.blocks.num_blocks
    assert scheduler.states.num_free == scheduler.states.num_slots


# Refusals.


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ask("a", prompt=0), "the prompt has 0 tokens; at least 1 is needed"),
        (ask("a", max_tokens=0), "max_tokens is 0; at least 1 is needed"),
        (ask("a", 30, 11), r"30 prompt tokens \+ max_tokens 11 = 41, more than max_model_len 40"),
        (ask("a", 20, 14), r"20 prompt tokens \+ max_tokens 14 need 9 KV blocks of 4 tokens, and the pool has 8"),
    ],
)
def test_what_can_never_run_is_refused_at_the_door(request_: Request, message: str) -> None:
    scheduler = make(blocks=8, block_tokens=4, max_len=40)
    with pytest.raises(RequestRefused, match=message):
        scheduler.add(request_)
    assert not scheduler.has_work()


def test_a_request_that_just_fits_runs_to_its_end() -> None:
    scheduler = make(blocks=8, block_tokens=4, max_len=40)
    request = ask("a", 20, 13)
    scheduler.add(request)
    while scheduler.has_work():
        step(scheduler)
    assert len(request.output_ids) == 13


def test_prompt_and_output_may_fill_max_model_len() -> None:
    scheduler = make(max_len=40)
    request = ask("a", 30, 10)
    scheduler.add(request)
    while scheduler.has_work():
        step(scheduler)
    assert request.total_tokens == 40


def test_an_id_in_use_is_refused() -> None:
    scheduler = make()
    scheduler.add(ask("a"))
    with pytest.raises(RequestRefused, match="request id a is in use"):
        scheduler.add(ask("a"))


def test_a_full_queue_is_told_apart_from_a_bad_request() -> None:
    scheduler = make(waiting=2)
    scheduler.add(ask("a"))
    scheduler.add(ask("b"))
    with pytest.raises(QueueFull, match="2 requests are waiting, the limit is 2"):
        scheduler.add(ask("c"))


def test_a_budget_below_the_batch_size_is_refused() -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens 3 is below max_num_seqs 4"):
        make(seqs=4, budget=3)


# The runner's side of the contract.


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (StepOutput(1, (Sampled("a", 5),)), "answered step 1 with 1 results, expected step 0 with 1"),
        (StepOutput(0, ()), "answered step 0 with 0 results, expected step 0 with 1"),
        (StepOutput(0, (Sampled("b", 5),)), "answered token 5 of b where step 0 has a with sample=True"),
        (StepOutput(0, (Sampled("a", None),)), "answered token None of a where step 0 has a with sample=True"),
    ],
)
def test_an_answer_to_another_question_is_an_error(output: StepOutput, message: str) -> None:
    scheduler = make()
    scheduler.add(ask("a"))
    batch = scheduler.schedule()
    assert batch is not None
    with pytest.raises(ValueError, match=message):
        scheduler.update(batch, output)


def test_a_step_is_booked_once() -> None:
    scheduler = make()
    scheduler.add(ask("a"))
    batch, _ = step(scheduler)
    with pytest.raises(ValueError, match="step 0 is not in flight"):
        scheduler.update(batch, answer(batch))


# Counters and times.


def test_counters_and_times() -> None:
    scheduler = make(budget=4)
    request = ask("a", prompt=5, max_tokens=2)
    scheduler.add(request)
    assert scheduler.stats().waiting == 1
    step(scheduler)
    stats = scheduler.stats()
    assert (stats.running, stats.waiting, stats.prompt_tokens, stats.kv_usage) == (1, 0, 0, 1 / 64)
    step(scheduler)
    step(scheduler)
    stats = scheduler.stats()
    assert (stats.running, stats.prompt_tokens, stats.generation_tokens, stats.steps) == (0, 5, 2, 3)
    assert stats.finished == {**dict.fromkeys(FinishReason, 0), FinishReason.LENGTH: 1}
    assert (request.first_scheduled, request.first_token, request.finished) == (1.0, 2.0, 3.0)


def test_preemption_does_not_restart_the_clock() -> None:
    scheduler = _tight()
    victim = scheduler.running[-1]
    times = victim.first_scheduled, victim.first_token
    while scheduler.has_work():
        step(scheduler)
    assert victim.preemptions == 1
    assert (victim.first_scheduled, victim.first_token) == times
