"""What runs in a step: batching, chunking, admission, block shortage and pre-emption."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.batch import Delivery, TokenLogprobs
from engine.cache.states import StatePool
from engine.request import Status
from engine.scheduler import Scheduler
from tests.engine.scheduling import answer, ask, make, shape, step

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


def test_preemption_does_not_restart_the_clock() -> None:
    scheduler = _tight()
    victim = scheduler.running[-1]
    times = victim.first_scheduled, victim.first_token
    while scheduler.has_work():
        step(scheduler)
    assert victim.preemptions == 1
    assert (victim.first_scheduled, victim.first_token) == times
