"""engine/runner: steps of every mixture give what each sequence gives alone."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from engine.batch import Batch

TOLERANCE = 2e-4
"""Largest difference of a float32 logit between two ways to cut the same work."""


def generate(driver, sequence, tokens):
    """Prefill in one step, then decode alone, `tokens` ids in all."""
    driver.step((sequence, len(sequence.ids)))
    for _ in range(tokens - 1):
        driver.step((sequence, 1))
    return sequence.ids[sequence.prompt :]


@pytest.mark.parametrize(
    "cuts", [(1, 99), (64, 36), (37, 63), (8, 8, 84), (99, 1), (1, 1, 1, 97), (30, 40, 30)], ids=str
)
def test_chunked_prefill_equals_one_shot(driver, prompt, cuts):
    ids = prompt(100)
    whole = driver.logits((driver.sequence("whole", ids, 0, tokens=104), 100))
    cut = driver.sequence("cut", ids, 1, tokens=104)
    pieces = torch.cat([driver.logits((cut, n)) for n in cuts])
    torch.testing.assert_close(pieces, whole, rtol=0, atol=TOLERANCE)


def test_decode_equals_prefill(reference, driver, prompt):
    sequence = driver.sequence("a", prompt(30), 3)
    made = generate(driver, sequence, 20)
    expected = reference.logits(sequence.ids)[29:-1].argmax(-1).tolist()
    assert made == expected


def test_prompt_of_one_token(reference, driver):
    sequence = driver.sequence("a", [17], 0)
    made = generate(driver, sequence, 8)
    assert made == reference.logits(sequence.ids)[:-1].argmax(-1).tolist()


def test_batch_equals_single_with_joins_leaves_and_chunks(driver, prompt):
    """Random schedules: sequences join in the middle, prefill in random chunks beside decodes, and leave."""
    rng = random.Random(11)
    lengths = [3, 70, 17, 1, 45, 26, 9, 12]
    expected = {}
    for i, n in enumerate(lengths):
        alone = driver.sequence(f"alone{i}", prompt(n), 0)
        expected[i] = generate(driver, alone, 10)
        driver.release(alone)
    waiting = list(enumerate(lengths))
    slots = [5, 1, 2, 4]
    running = {}
    made = {}
    while waiting or running:
        if waiting and slots and rng.random() < 0.7:
            i, n = waiting.pop(0)
            running[i] = driver.sequence(f"r{i}", prompt(n), slots.pop())
        decodes, chunks = [], []
        for sequence in running.values():
            left = len(sequence.ids) - sequence.done
            if left == 1 and sequence.done:
                decodes.append((sequence, 1))
            elif rng.random() < 0.8:
                chunks.append((sequence, rng.randint(1, left)))
        if decodes or chunks:
            driver.step(*decodes, *chunks)
        for i, sequence in list(running.items()):
            if len(sequence.ids) == sequence.prompt + 10:
                made[i] = sequence.ids[sequence.prompt :]
                slots.append(sequence.slot)
                driver.release(running.pop(i))
    assert made == expected


def test_slot_is_cleared_for_its_next_request(driver, prompt):
    first = driver.sequence("first", prompt(40), 2)
    fresh = generate(driver, first, 6)
    other = driver.sequence("other", prompt(50), 2)
    generate(driver, other, 6)
    again = driver.sequence("again", prompt(40), 2)
    assert generate(driver, again, 6) == fresh


def test_step_writes_only_its_own_slots_and_blocks(driver, prompt):
    caches = driver.runner.caches
    sequence = driver.sequence("a", prompt(21), 4, tokens=24)
    generate(driver, sequence, 3)
    mine = set(sequence.blocks)
    for block in range(caches.kv.shape[2]):
        assert bool(caches.kv[:, :, block].isnan().all()) == (block not in mine)
    for slot in range(caches.conv.shape[1]):
        assert bool(caches.conv[:, slot].isnan().all()) == (slot != 4)
        assert bool(caches.recurrent[:, slot].isnan().all()) == (slot != 4)


def test_chunk_that_does_not_end_the_sequence_samples_nothing(driver, prompt):
    sequence = driver.sequence("a", prompt(20), 0)
    sampled = driver.step((sequence, 12))["a"]
    assert sampled.token_id is None
    assert sampled.logprobs is None
    assert driver.step((sequence, 8))["a"].token_id is not None


def test_lm_head_sees_only_sampled_rows(driver, prompt, monkeypatch):
    rows = []
    logits = driver.runner.model.logits
    monkeypatch.setattr(driver.runner.model, "logits", lambda hidden: (rows.append(hidden.shape[0]), logits(hidden))[1])
    a, b, c = (driver.sequence(n, prompt(k), i) for i, (n, k) in enumerate([("a", 5), ("b", 30), ("c", 40)]))
    driver.step((a, 5))
    driver.step((a, 1), (b, 30), (c, 20))
    driver.step((c, 3))
    assert rows == [1, 2]


@pytest.mark.parametrize("cuts", [(50,), (1, 49), (20, 30), (49, 1), (10, 39, 1)], ids=str)
def test_prompt_logprobs_across_chunks(reference, driver, prompt, cuts):
    ids = prompt(50)
    sequence = driver.sequence("a", ids, 1, prompt_logprobs=2)
    beside = driver.sequence("b", prompt(4), 0)
    driver.step((beside, 4))
    entries = []
    for size in cuts:
        entries += driver.step((beside, 1), (sequence, size))["a"].prompt_logprobs
    expected = reference.logits(ids).log_softmax(-1)
    assert entries[0] is None
    assert [e.token_id for e in entries[1:]] == ids[1:]
    for position, entry in enumerate(entries[1:]):
        assert entry.logprob == pytest.approx(float(expected[position, entry.token_id]), abs=1e-3)
        assert entry.top[0][0] == int(expected[position].argmax())
    assert driver.step((sequence, 1))["a"].prompt_logprobs == ()


def test_prompt_logprobs_do_not_reach_into_the_slots_next_request(driver, prompt):
    left = driver.sequence("left", prompt(40), 1, prompt_logprobs=0)
    driver.step((left, 20))
    after = driver.sequence("after", prompt(30), 1, prompt_logprobs=0)
    first = driver.step((after, 10))["after"].prompt_logprobs + driver.step((after, 20))["after"].prompt_logprobs
    alone = driver.sequence("alone", prompt(30), 2, prompt_logprobs=0)
    whole = driver.step((alone, 30))["alone"].prompt_logprobs
    assert [e.logprob for e in first[1:]] == pytest.approx([e.logprob for e in whole[1:]], abs=1e-4)


def test_prompt_logprobs_without_the_chunk_before_are_refused(driver, prompt):
    sequence = driver.sequence("a", prompt(20), 0)
    driver.step((sequence, 10))
    sequence.params = dataclasses.replace(sequence.params, prompt_logprobs=0)
    with pytest.raises(ValueError, match="request a: prompt log-probs from token 10 on"):
        driver.step((sequence, 10))


def test_output_logprobs_equal_the_reference(reference, driver, prompt):
    sequence = driver.sequence("a", prompt(25), 0, logprobs=3)
    entries = [driver.step((sequence, 25))["a"].logprobs] + [driver.step((sequence, 1))["a"].logprobs for _ in range(5)]
    expected = reference.logits(sequence.ids).log_softmax(-1)[24:]
    for row, entry in zip(expected, entries, strict=False):
        assert entry.rank == 1
        assert [i for i, _ in entry.top] == row.topk(3).indices.tolist()
        assert [v for _, v in entry.top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-3)


def test_blocks_that_do_not_cover_the_step_are_refused(driver, prompt):
    sequence = driver.sequence("short", prompt(20), 0, tokens=16)
    with pytest.raises(ValueError, match="request short: 2 KV blocks of 8 tokens, but its step ends at token 20"):
        driver.step((sequence, 20))


def test_results_keep_the_order_of_the_segments(driver, prompt):
    parts = [driver.sequence(name, prompt(n), i) for i, (name, n) in enumerate([("x", 4), ("y", 9), ("z", 2)])]
    batch = Batch(77, tuple(s.segment(len(s.ids)) for s in parts))
    output = driver.runner.run(batch)
    assert output.step == 77
    assert [s.request_id for s in output.sampled] == ["x", "y", "z"]
