"""A prompt by its graph on one GPU: against the step launch by launch, other sequences' caches, what decodes beside."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from engine.batch import Batch
from engine.config import SchedulerConfig
from engine.kernels import library
from engine.prompt_graphs import ARCHS, PromptGraphs
from engine.server.warmup import warm_up
from tests.engine.cuda.conftest import BLOCK_TOKENS, MAX_LEN, SLOTS, Sequence, last_logits

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SAME = 3e-2
"""Of a row of logits after four layers: where a library rounds one number otherwise, an E4M3 input is a whole step off,
as between two right engines, and a mixture may choose another of two experts that are nearly equally good. So the other
side has as many rows (`eagerly`), and is mostly the same to the bit."""


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


def padded(runner, tokens):
    return next(n for n in runner.prompts.lengths if n >= tokens)


def graph_logits(runner, tokens):
    return runner.prompts._logits[padded(runner, tokens)].float()


def eagerly(runner, sequence, tokens):
    """Logits launch by launch, beside another prompt that has a row for each row of the graph's padding."""
    more = padded(runner, tokens) - tokens
    beside = [Sequence(699, more, 6).segment(more)] if more else []
    return last_logits(runner, [sequence.segment(tokens), *beside])[:1]


@pytest.mark.parametrize("tokens", [2, 3, 33, 63, 64, 65, 127, 128, 129, 300, 1000, 1024, 1500, 2048])
def test_as_launch_by_launch(prompted, tokens):
    expected = eagerly(prompted, Sequence(700 + tokens, tokens, 5), tokens)
    (token,) = run(prompted, [Sequence(700 + tokens, tokens, 9).segment(tokens)])
    made = graph_logits(prompted, tokens)
    close(made, expected)
    assert token == int(made.argmax())


def test_a_replay_is_its_launches(prompted):
    """To the bit, of every length: the same launches over the same inputs, which are still there, by the host."""
    graphs = prompted.prompts
    for size in graphs.lengths:
        run(prompted, [Sequence(870 + size, size - 5, 9).segment(size - 5)])
        replayed, id_ = graphs._logits[size], int(graphs._id)
        kept = replayed.clone()
        with torch.inference_mode():
            graphs._queue(size)
        launched, graphs._logits[size] = graphs._logits[size], replayed
        assert torch.equal(launched, kept)
        assert int(graphs._id) == id_


@pytest.mark.parametrize("tokens", [40, 128, 900])
def test_decoding_goes_on_from_what_it_left(prompted, tokens):
    """State, kept inputs and keys: one token more after either."""
    eager, graph = Sequence(800, tokens, 5), Sequence(800, tokens, 9)
    eagerly(prompted, eager, tokens)
    run(prompted, [graph.segment(tokens)])
    for sequence in (eager, graph):
        sequence.ids.append(77)
    expected = last_logits(prompted, [eager.segment(1)], graph=True).clone()
    close(last_logits(prompted, [graph.segment(1)], graph=True), expected)


@pytest.mark.parametrize(("first", "rest"), [(128, 1), (900, 200), (1020, 1000)])
def test_the_rest_of_a_prompt_goes_on_from_its_first_chunk(prompted, first, rest):
    eager, graph = Sequence(850, first + rest, 5), Sequence(850, first + rest, 9)
    eagerly(prompted, eager, first)
    assert run(prompted, [dataclasses.replace(graph.segment(first), sample=False)]) == [None]
    expected = last_logits(prompted, [eager.segment(rest)])
    close(last_logits(prompted, [graph.segment(rest)]), expected)


@pytest.mark.parametrize("tokens", [2, 65, 450, 900])
def test_what_was_there_before_is_no_part_of_it(prompted, tokens):
    """NaN in every cache, and in the embedding of id 0, which is that of padding: its rows are NaN in all layers."""
    caches, embedding = prompted.caches, prompted.model.embed_tokens
    run(prompted, [Sequence(860, tokens, 9).segment(tokens)])
    wanted = graph_logits(prompted, tokens).clone()
    held = [t.view(torch.uint8) for t in (caches.kv, caches.conv, caches.recurrent, embedding[0])]
    before = [t.clone() for t in held]
    left = [t.clone() for t in (caches.conv[:, 9], caches.recurrent[:, 9])]
    blocks = Sequence(860, tokens, 9).segment(tokens).block_ids
    full = list(blocks[: tokens // BLOCK_TOKENS])
    try:
        with torch.inference_mode():
            for tensor in held:
                tensor.fill_(0xFF)
        for _ in range(2):  # the second one finds NaN in the graph's own memory too
            run(prompted, [Sequence(860, tokens, 9).segment(tokens)])
            assert torch.equal(graph_logits(prompted, tokens), wanted)
        assert torch.equal(caches.conv[:, 9], left[0])
        assert torch.equal(caches.recurrent[:, 9], left[1])
        assert torch.equal(held[0][:, :, full], before[0][:, :, full])
    finally:
        with torch.inference_mode():
            for tensor, kept in zip(held, before, strict=True):
                tensor.copy_(kept)


@pytest.mark.parametrize("tokens", [128, 900, 2048])
def test_a_larger_step_lets_nothing_go_that_a_graph_reads(prompted, tokens):
    """The server's warm-up is one, and follows the capture. Whatever it has let go is NaN of other tensors then."""
    run(prompted, [Sequence(880, tokens, 9).segment(tokens)])
    wanted = graph_logits(prompted, tokens).clone()
    warm_up(prompted, SchedulerConfig(max_num_seqs=SLOTS, max_model_len=MAX_LEN), BLOCK_TOKENS)
    torch.cuda.synchronize()
    taken = [torch.full((1 << k,), float("nan"), device=prompted.device) for k in range(5, 23) for _ in range(8)]
    run(prompted, [Sequence(880, tokens, 9).segment(tokens)])
    assert torch.equal(graph_logits(prompted, tokens), wanted)
    assert all(t.isnan().all() for t in taken)


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
    """A graph leaves nothing that the next one, shorter or longer, takes for its own; the same bits every time."""
    lengths = (2048, 2, 1030, 129, 1024, 128, 64)
    first = {}
    for round_ in range(16):
        for tokens in lengths:
            run(prompted, [Sequence(820 + tokens, tokens, round_).segment(tokens)])
            made = graph_logits(prompted, tokens).clone()
            assert torch.equal(first.setdefault(tokens, made), made)


@pytest.mark.parametrize("beside", [1, 8, 15])
def test_beside_decoding_sequences(prompted, beside):
    running = [Sequence(830 + i, 20 + 9 * i, i) for i in range(beside)]
    twins = [Sequence(830 + i, 20 + 9 * i, 15 + i) for i in range(beside)]
    for sequence in (*running, *twins):
        last_logits(prompted, [sequence.segment(sequence.length)])
        sequence.ids.append(5)
    expected = last_logits(prompted, [s.segment(1) for s in twins], graph=True).argmax(-1).tolist()
    alone = run(prompted, [Sequence(840, 200, 30).segment(200)])
    ids = run(prompted, [*(s.segment(1) for s in running), Sequence(840, 200, 31).segment(200)])
    assert ids == [*expected, *alone]
