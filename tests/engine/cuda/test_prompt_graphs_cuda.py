"""A prompt by its graph on one GPU: against the step launch by launch, other sequences' caches, what decodes beside."""

from __future__ import annotations

import pytest
import torch

from engine.batch import Batch
from engine.kernels import library
from engine.prompt_graphs import ARCHS, PromptGraphs
from tests.engine.cuda.conftest import MAX_LEN, Sequence, last_logits

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SAME = 3e-2
"""Of a row of logits after four layers: the padded products have other shapes, and a library rounds them otherwise; an
E4M3 input that is a last bit off is then a whole step off, as between two right engines."""


@pytest.fixture(scope="module", params=["runner", "moe_runner"])
def prompted(request):
    made = request.getfixturevalue(request.param)
    if library.arch_of(made.device) not in ARCHS:
        pytest.skip("needs a Hopper GPU")
    made.prompts = PromptGraphs(made.model, made.caches, 2048, MAX_LEN, made.graphs.max_sequences)
    yield made
    made.prompts = None


def run(runner, segments):
    assert runner.prompts.takes(Batch(0, tuple(segments)))
    return [s.token_id for s in runner.run(Batch(0, tuple(segments))).sampled]


def close(made, expected):
    assert torch.isfinite(made).all()
    assert float((made - expected).norm() / expected.norm()) < SAME


def graph_logits(runner, tokens):
    size = next(n for n in runner.prompts.lengths if n >= tokens)
    return runner.prompts._logits[size].float()


@pytest.mark.parametrize("tokens", [2, 3, 33, 63, 64, 65, 127, 128, 129, 300, 1000, 1024, 1500, 2048])
def test_as_launch_by_launch(prompted, tokens):
    expected = last_logits(prompted, [Sequence(700 + tokens, tokens, 5).segment(tokens)])
    (token,) = run(prompted, [Sequence(700 + tokens, tokens, 9).segment(tokens)])
    made = graph_logits(prompted, tokens)
    close(made, expected)
    assert token == int(made.argmax())


@pytest.mark.parametrize("tokens", [40, 128, 900])
def test_decoding_goes_on_from_what_it_left(prompted, tokens):
    """State, kept inputs and keys: one token more after either."""
    eager, graph = Sequence(800, tokens, 5), Sequence(800, tokens, 9)
    last_logits(prompted, [eager.segment(tokens)])
    run(prompted, [graph.segment(tokens)])
    for sequence in (eager, graph):
        sequence.ids.append(77)
    expected = last_logits(prompted, [eager.segment(1)], graph=True).clone()
    close(last_logits(prompted, [graph.segment(1)], graph=True), expected)


def test_nothing_else_is_written(prompted):
    """Caches of other slots and of blocks that are not the prompt's keep their very bytes."""
    run(prompted, [Sequence(810, 500, 3).segment(500)])
    segment = Sequence(811, 450, 11).segment(450)
    caches = prompted.caches
    before = [t.clone() for t in (caches.kv.view(torch.uint8), caches.conv, caches.recurrent)]
    run(prompted, [segment])
    others = [slot for slot in range(caches.conv.shape[1]) if slot != 11]
    assert torch.equal(caches.conv[:, others], before[1][:, others])
    assert torch.equal(caches.recurrent[:, others], before[2][:, others])
    foreign = [b for b in range(caches.kv.shape[2]) if b not in segment.block_ids]
    assert torch.equal(caches.kv.view(torch.uint8)[:, :, foreign], before[0][:, :, foreign])
    last = segment.block_ids[-1]
    assert torch.equal(caches.kv.view(torch.uint8)[:, :, last, 450 % 16 :], before[0][:, :, last, 450 % 16 :])


def test_one_after_another_of_all_lengths(prompted):
    """A graph leaves nothing that the next one, shorter or longer, takes for its own; twice the same bits."""
    lengths = (2048, 2, 1030, 129, 1024, 128, 64)
    first = {}
    for round_ in range(2):
        for tokens in lengths:
            run(prompted, [Sequence(820 + tokens, tokens, 4 + round_).segment(tokens)])
            made = graph_logits(prompted, tokens).clone()
            assert torch.equal(first.setdefault(tokens, made), made)


@pytest.mark.parametrize("beside", [1, 8])
def test_beside_decoding_sequences(prompted, beside):
    running = [Sequence(830 + i, 20 + 9 * i, i) for i in range(beside)]
    twins = [Sequence(830 + i, 20 + 9 * i, 10 + i) for i in range(beside)]
    for sequence in (*running, *twins):
        last_logits(prompted, [sequence.segment(sequence.length)])
        sequence.ids.append(5)
    expected = last_logits(prompted, [s.segment(1) for s in twins], graph=True).argmax(-1).tolist()
    alone = run(prompted, [Sequence(840, 200, 30).segment(200)])
    ids = run(prompted, [*(s.segment(1) for s in running), Sequence(840, 200, 31).segment(200)])
    assert ids == [*expected, *alone]
