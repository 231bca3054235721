"""How requests end or never begin: stops, aborts, refusals, a runner that answers wrongly; counters and times."""

from __future__ import annotations

import pytest

from engine.batch import Delivery, Sampled, StepOutput, TokenLogprobs
from engine.request import FinishReason, Request, Status
from engine.scheduler import QueueFull, RequestRefused
from tests.engine.scheduling import answer, ask, make, step

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
