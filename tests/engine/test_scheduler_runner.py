"""Scheduler and runner together: a real model under pre-emption, chunking and aborts gives the reference's tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.cache.blocks import BlockPool
from engine.cache.states import StatePool
from engine.config import EngineConfig, ModelConfig, SchedulerConfig
from engine.request import FinishReason, Request, SamplingParams
from engine.scheduler import Scheduler

LENGTHS = (3, 41, 1, 26, 9, 50, 17, 2, 33, 12)
OUTPUT = 20
ABORTED = {"r3": 9, "r6": 28}
"""Request: the step in whose flight it is aborted."""


@pytest.fixture
def scheduler(driver):
    """Four slots, and KV blocks for about a quarter of the requests: the runner has more of both than it may use."""
    limits = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=80)
    blocks = BlockPool(11, driver.runner.caches.block_tokens)
    return Scheduler(EngineConfig(ModelConfig(Path("model")), scheduler=limits), blocks, StatePool(4))


def run(scheduler, runner, requests, aborted):
    """name -> everything delivered for it."""
    received = {request.id: [] for request in requests}
    for request in requests:
        scheduler.add(request)
    while scheduler.has_work():
        batch = scheduler.schedule()
        output = runner.run(batch)
        late = [scheduler.abort(name) for name, step in aborted.items() if step == batch.step]
        for delivery in [*late, *scheduler.update(batch, output)]:
            received[delivery.request_id].append(delivery)
    return received


def test_a_crowded_engine_generates_what_the_reference_does(reference, driver, prompt, scheduler):
    greedy = SamplingParams(OUTPUT, temperature=0.0, prompt_logprobs=0)
    requests = [Request(f"r{i}", tuple(prompt(n)), greedy) for i, n in enumerate(LENGTHS)]
    received = run(scheduler, driver.runner, requests, ABORTED)
    assert scheduler.stats().preemptions >= 3
    for request in requests:
        deliveries = received[request.id]
        tokens = [token for delivery in deliveries for token in delivery.token_ids]
        expected = reference.logits([*request.prompt_ids, *tokens])
        start = len(request.prompt_ids) - 1
        assert tokens == expected[start : start + len(tokens)].argmax(-1).tolist()
        if request.id in ABORTED:
            assert request.finish_reason is FinishReason.ABORT
            continue
        assert (request.finish_reason, len(tokens)) == (FinishReason.LENGTH, OUTPUT)
        entries = [entry for delivery in deliveries for entry in delivery.prompt_logprobs]
        logprobs = expected.log_softmax(-1)
        assert entries[0] is None
        assert [entry.token_id for entry in entries[1:]] == list(request.prompt_ids[1:])
        for position, entry in enumerate(entries[1:]):
            assert entry.logprob == pytest.approx(float(logprobs[position, entry.token_id]), abs=1e-3)
    assert scheduler.blocks.usage == 0
    assert scheduler.states.num_free == 4


def test_seeded_sampling_survives_preemption(dense_reference, make_driver, prompt):
    """A seeded request's draws depend on (seed, position) alone, so a crowd changes nothing, pre-empted or not."""

    def generate(blocks, seqs, names):
        runner = make_driver(dense_reference, torch.float32).runner
        limits = SchedulerConfig(max_num_seqs=seqs, max_num_batched_tokens=16, max_model_len=80)
        pool = BlockPool(blocks, runner.caches.block_tokens)
        scheduler = Scheduler(EngineConfig(ModelConfig(Path("model")), scheduler=limits), pool, StatePool(seqs))
        requests = [
            Request(f"r{i}", tuple(prompt(LENGTHS[i])), SamplingParams(OUTPUT, temperature=0.8, seed=i)) for i in names
        ]
        run(scheduler, runner, requests, {})
        return {r.id: r.output_ids for r in requests}, scheduler.stats().preemptions

    crowd, preemptions = generate(11, 4, range(10))
    assert preemptions >= 3
    for i in range(10):
        assert generate(11, 1, [i])[0][f"r{i}"] == crowd[f"r{i}"]
