"""Prompts of the fused model by padded graphs, on torch stand-ins for its kernels: as the step launch by launch."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from engine.batch import Batch
from engine.prompt_graphs import PromptGraphs
from engine.request import SamplingParams
from tests.engine.models import kernels_on_cpu
from tests.engine.models.test_fused_wiring import (
    GREEDY,
    MAX_LEN,
    SLOTS,
    PerTokenWeights,
    RandomWeights,
    Sequence,
    error,
    logits,
    make_pair,
    replays,
)


@pytest.fixture(scope="module", params=[RandomWeights, PerTokenWeights])
def prompted(request):
    with pytest.MonkeyPatch.context() as patch:
        kernels_on_cpu.install(patch)
        pair = make_pair(request.param())
        ours = pair[0]
        ours.prompts = PromptGraphs(ours.model, ours.caches, MAX_LEN, MAX_LEN, SLOTS, capture=replays)
        yield pair


def by_graph(pair, parts):
    """As `error`, of a step that the prompts' graphs must take; of the prompt's row."""
    ours, reference, _ = pair
    segments = [s.segment(n) for s, n in parts]
    expected = logits(reference, segments)
    assert ours.prompts.takes(Batch(0, tuple(segments)))
    sampled = [s.token_id for s in ours.run(Batch(0, tuple(segments))).sampled]
    made = ours.prompts._logits[next(n for n in ours.prompts.lengths if n >= parts[-1][1])].float()
    assert sampled[-1] == int(made.argmax())
    for (sequence, _), token in zip(parts, expected.argmax(-1).tolist(), strict=True):
        sequence.ids.append(token)
    assert torch.isfinite(made).all()
    return float((made - expected[-1]).norm() / expected[-1].norm()), sampled


@pytest.mark.parametrize("tokens", [2, 3, 40, 64, 65, 120])
def test_a_prompt_by_its_graph(prompted, tokens):
    """As launch by launch beside another prompt, whose rows have it multiplied as the graph's padding has; and the step
    after it.
    """
    ours = prompted[0]
    twin, sequence = (Sequence(60 + tokens, tokens, slot) for slot in (1, 3))
    graphs, ours.prompts = ours.prompts, None
    expected = logits(ours, [twin.segment(tokens), Sequence(5, 90, 2).segment(90)])[0].clone()
    ours.prompts = graphs
    by_graph(prompted, [(sequence, tokens)])
    made = graphs._logits[next(n for n in graphs.lengths if n >= tokens)][0].float()
    assert float((made - expected).norm() / expected.norm()) < prompted[2].logit_error / 2
    twin.ids.append(sequence.ids[-1])
    after, expected = (logits(ours, [s.segment(1)])[0].clone() for s in (sequence, twin))
    assert float((after - expected).norm() / expected.norm()) < prompted[2].logit_error / 2


def padding_may_be_nan(ours, tokens):
    """The embedding of id 0, which is that of padding, is NaN, and so are its rows in all layers."""
    embedding, made = ours.model.embed_tokens, []
    held = embedding[0].clone()
    for padding in (held, torch.full_like(held, float("nan"))):
        sequence = Sequence(120 + tokens, tokens, 2)
        sequence.ids = [max(i, 1) for i in sequence.ids]
        embedding[0] = padding
        segment = sequence.segment(tokens)
        assert ours.prompts.takes(Batch(0, (segment,)))
        ours.run(Batch(0, (segment,)))
        kept = (ours.prompts._logits[128], ours.caches.conv[:, 2], ours.caches.recurrent[:, 2])
        made.append([t.clone() for t in kept])
    embedding[0] = held
    for ours_, theirs in zip(*made, strict=True):
        assert torch.isfinite(theirs).all()
        assert torch.equal(ours_, theirs)


@pytest.mark.parametrize("tokens", [2, 65, 120])
def test_rows_of_padding_may_be_nan(prompted, tokens):
    padding_may_be_nan(prompted[0], tokens)


def test_the_rest_of_a_prompt_goes_on_from_its_first_chunk(prompted):
    """The chunk is not the prompt's end: nothing is sampled of it."""
    ours, reference, most = prompted
    sequence = Sequence(130, 120, 1)
    first = dataclasses.replace(sequence.segment(80), sample=False)
    reference.run(Batch(0, (first,)))
    assert ours.prompts.takes(Batch(0, (first,)))
    assert ours.run(Batch(0, (first,))).sampled[0].token_id is None
    assert error(prompted, [(sequence, 40)]) < most.logit_error


def test_prompts_by_graphs_beside_decodes(prompted):
    """Padding leaves the others' caches alone, and theirs a graph of its own decodes."""
    running = [Sequence(70 + i, 12 + i, i) for i in range(3)]
    for s in running:
        assert by_graph(prompted, [(s, len(s.ids))])[0] < prompted[2].logit_error
    late = Sequence(79, 90, 4)
    assert by_graph(prompted, [*((s, 1) for s in running), (late, 90)])[0] < prompted[2].logit_error
    assert error(prompted, [(s, 1) for s in (*running, late)]) < prompted[2].logit_error


def test_what_is_wanted_of_each_row_is_made_of_its_own_logits(prompted):
    """One decodes with a seed, one greedily; of a prompt nothing is sampled, then its id with log-probs."""
    ours = prompted[0]
    drawn = SamplingParams(max_tokens=8, temperature=1.5, seed=7)
    told = SamplingParams(max_tokens=8, temperature=0.0, logprobs=2)
    running = [Sequence(95 + i, 20, i) for i in range(2)]
    for s in running:
        s.ids.append(by_graph(prompted, [(s, 20)])[1][-1])
    for params, sample in ((GREEDY, False), (told, True)):
        decoding = [s.segment(1) for s in running]
        decoding[0] = dataclasses.replace(decoding[0], params=drawn)
        last = dataclasses.replace(Sequence(99, 70, 4).segment(70), params=params, sample=sample)
        sampled = ours.run(Batch(0, (*decoding, last))).sampled
        rows = ours.graphs._logits[2].float()
        (expected, _), *_ = ours.sampler.sample(rows[:1], [decoding[0]])
        assert [s.request_id for s in sampled] == ["95", "96", "99"]
        assert [s.token_id for s in sampled[:2]] == [expected, int(rows[1].argmax())]
        logprobs = ours.prompts._logits[128].float()[0].log_softmax(-1)
        assert sampled[2].token_id == (int(logprobs.argmax()) if sample else None)
        assert (sampled[2].logprobs is not None) is sample
        if sample:
            assert sampled[2].logprobs.logprob == pytest.approx(float(logprobs.max()), abs=1e-4)
        for s, one in zip(running, sampled, strict=False):
            s.ids.append(one.token_id)


def test_what_a_penalised_request_has_seen_is_kept_beside_a_prompt(prompted):
    """Its counts are on the device: made anew, they are an upload of the whole request."""
    ours = prompted[0]
    penalised = SamplingParams(max_tokens=8, temperature=0.0, presence_penalty=1.0)
    drawn = SamplingParams(max_tokens=8, temperature=1.5, seed=7)
    sequence = Sequence(110, 20, 1)
    outputs = [by_graph(prompted, [(sequence, 20)])[1][-1]]

    def decoding():
        segment = dataclasses.replace(sequence.segment(1), params=penalised, output_ids=outputs)
        return dataclasses.replace(segment, prompt_ids=tuple(sequence.ids[:20]))

    ours.run(Batch(0, (decoding(),)))
    seen = ours.sampler._histories["110"]
    late = dataclasses.replace(Sequence(111, 70, 4).segment(70), params=drawn)
    sequence.ids.append(5)
    batch = Batch(0, (decoding(), late))
    assert ours.prompts.takes(batch)
    ours.run(batch)
    assert ours.sampler._histories["110"] is seen


def test_a_slot_taken_over_by_a_graph_starts_from_nothing(prompted):
    for number in (90, 91):
        sequence = Sequence(number, 50, 2)
        assert by_graph(prompted, [(sequence, 50)])[0] < prompted[2].logit_error
