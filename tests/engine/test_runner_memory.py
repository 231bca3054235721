"""The real model runs out of memory in the middle of a step: what each request gets is what it gets undisturbed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine.cache.blocks import BlockPool
from engine.cache.states import StatePool
from engine.config import EngineConfig, ModelConfig, SchedulerConfig
from engine.graphs import LANES
from engine.loop import EngineLoop
from engine.request import FinishReason, Request, SamplingParams
from engine.scheduler import Scheduler
from tests.engine.exhausting import SAID, serve
from tests.engine.test_graphs import captured, segment
from tests.engine.test_prompt_graphs import make
from tests.engine.test_prompt_graphs import prompt as begun

__all__ = ["captured"]  # a fixture

LENGTHS = (9, 41, 1, 26, 17)


def requests(prompt: Callable[[int], list[int]]) -> list[Request]:
    """Each carries something from step to step that a broken step may have changed."""
    asked = [
        SamplingParams(16, temperature=0.0, frequency_penalty=0.6, repetition_penalty=1.3),
        SamplingParams(12, temperature=0.0, prompt_logprobs=2),
        SamplingParams(14, temperature=0.9, seed=3, logprobs=3),
        SamplingParams(10, temperature=0.0, presence_penalty=0.8, prompt_logprobs=0),
        SamplingParams(8, temperature=0.0),
    ]
    return [Request(f"r{i}", tuple(prompt(n)), p) for i, (n, p) in enumerate(zip(LENGTHS, asked, strict=True))]


@pytest.fixture
def run(make_driver, dense_reference, prompt):
    """run(break_it) -> (everything each request got, the runner); break_it(runner, fail) plants calls of `fail`."""

    def made(break_it=None, fails_at=()):
        runner = make_driver(dense_reference, torch.float32).runner
        limits = SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=16, max_model_len=80)
        config = EngineConfig(ModelConfig(Path("model")), scheduler=limits)
        scheduler = Scheduler(config, BlockPool(60, runner.caches.block_tokens), StatePool(3))
        calls = []

        def fail():
            calls.append(scheduler._step)
            if len(calls) - 1 in fails_at:
                raise torch.OutOfMemoryError(SAID)

        if break_it is not None:
            break_it(runner, fail)
        loop = EngineLoop(scheduler, runner)
        asked = requests(prompt)
        inboxes = serve(loop, *asked)
        loop.stop()
        assert scheduler.blocks.usage == 0
        assert {inbox.reason for inbox in inboxes} == {FinishReason.LENGTH}
        return [received(inbox.deliveries) for inbox in inboxes], scheduler.stats().preemptions, len(calls)

    return made


def received(deliveries):
    """Ids exactly; log-probs as numbers to compare nearly."""
    tokens = [token for d in deliveries for token in d.token_ids]
    entries = [e for d in deliveries for e in (*d.prompt_logprobs, *d.logprobs)]
    return tokens, [e and (e.token_id, e.rank, round(e.logprob, 2), [i for i, _ in e.top]) for e in entries]


def after_a_layer(index: int):
    """The layers up to it have moved their state; those behind have not."""

    def plant(runner, fail):
        layer = runner.model.layers[index]

        def broken(*arguments):
            out = layer(*arguments)
            fail()
            return out

        runner.model.layers[index] = broken

    return plant


def before_the_draw(runner, fail):
    """All layers have moved, all penalties are counted."""
    choose = runner.sampler._choose

    def broken(*arguments):
        fail()
        return choose(*arguments)

    runner.sampler._choose = broken


def between_counting_and_noting(runner, fail):
    """A token is among the counts, but not noted as counted: it would be counted again."""
    make = runner.sampler._history

    def broken(of):
        history = make(of)
        try:
            fail()
        except torch.OutOfMemoryError:
            history.counted = max(0, history.counted - 1)
            raise
        return history

    runner.sampler._history = broken


def in_a_prompt_s_logprobs(runner, fail):
    take = runner.prompt_logprobs._entries

    def broken(*arguments):
        fail()
        return take(*arguments)

    runner.prompt_logprobs._entries = broken


@pytest.mark.parametrize(
    ("place", "fails_at"),
    [
        (after_a_layer(0), (0, 1)),
        (after_a_layer(1), (7,)),
        (after_a_layer(3), (3, 4, 12, 20)),
        (before_the_draw, (4, 9)),
        (between_counting_and_noting, (5, 17)),
        (in_a_prompt_s_logprobs, (2,)),
    ],
    ids=["first layer", "second layer", "last layer", "draw", "penalties", "prompt log-probs"],
)
def test_nobody_sees_that_a_step_broke(run, place, fails_at):
    undisturbed, _, _ = run()
    disturbed, recomputed, calls = run(place, fails_at)
    assert calls > max(fails_at)
    assert recomputed >= 1
    assert disturbed == undisturbed


def test_recovering_leaves_no_lane_taken(captured, make_driver, dense_reference):
    """A step that broke between its launches and their reading, a prompt beside what decodes, was read by nobody."""
    runner = make_driver(dense_reference, torch.float32).runner
    runner.graphs, runner.prompts = captured[0], make()[0]
    one = [segment("a", 3, 0, (0, 1))]
    for _ in range(LANES):
        runner.graphs.launch(one)
    runner.prompts.launch(begun(100))
    with pytest.raises(RuntimeError, match="steps are queued"):
        runner.graphs.launch(one)
    with pytest.raises(RuntimeError, match="a prompt is queued"):
        runner.prompts.launch(begun(100))
    runner.recover()
    for _ in range(LANES):
        runner.graphs.launch(one)
    runner.prompts.launch(begun(100))


def test_on_a_device_it_waits_first_and_gives_back_last(monkeypatch, make_driver, dense_reference):
    """Memory that a queued kernel still uses may not go to others; what a traceback's cycle holds is no free memory."""
    runner = make_driver(dense_reference, torch.float32).runner
    said = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: said.append("wait"))
    monkeypatch.setattr("engine.runner.gc.collect", lambda: said.append("collect"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: said.append("give back"))
    runner.recover()
    assert said == ["collect"]
    runner.device = SimpleNamespace(type="cuda")
    runner.recover()
    assert said[1:] == ["wait", "collect", "give back"]


def test_a_token_that_a_broken_step_counted_is_not_counted_twice(make_driver, dense_reference):
    """Once penalised the token still leads; twice, the other one does."""
    runner = make_driver(dense_reference, torch.float32).runner
    logits = torch.zeros(1, runner.sampler.vocab_size)
    logits[0, 5], logits[0, 6] = 2.75, 2.0
    params = SamplingParams(8, temperature=0.0, frequency_penalty=0.5)
    one = [replace(segment("a", 3, 0, (0, 1), params=params), output_ids=[5])]
    assert runner.sampler.sample(logits.clone(), one) == [(5, None)]
    runner.sampler._histories["a"].counted = 0  # it broke behind the count
    runner.recover()
    assert runner.sampler.sample(logits.clone(), one) == [(5, None)]
