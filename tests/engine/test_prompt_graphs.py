"""engine/prompt_graphs without a GPU: what is laid out for a prompt, which graph runs, and what comes back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import Batch, Segment
from engine.prompt_graphs import LENGTHS, PromptGraphs
from engine.request import SamplingParams

BLOCK_TOKENS, VOCAB, POSITIONS = 16, 64, 1000
GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


def prompt(tokens, slot=3, *, position=0, fresh=True, params=GREEDY, blocks=None):
    ids = tuple((7 * i + tokens) % VOCAB for i in range(tokens))
    blocks = tuple(range(5, 5 + -(-tokens // BLOCK_TOKENS))) if blocks is None else blocks
    return Segment("p", ids, position, blocks, slot, fresh, True, params)


def decoding(n, *, tokens=1, params=GREEDY):
    return [Segment(f"d{i}", (1,) * tokens, 40, (0, 1, 2), i, False, True, params) for i in range(n)]


class Model:
    """Hidden states that are a row's id; the row that is asked for decides the next id. Keeps what it saw."""

    def __init__(self):
        self.steps, self.zeroed = [], []

    def forward(self, step, _caches):
        (run,) = step.runs
        self.steps.append(
            SimpleNamespace(
                ids=step.token_ids.tolist(),
                positions=step.positions.tolist(),
                write=step.kv_slots.tolist(),
                read=run.kv_slots.tolist(),
                live=step.live.item(),
                slot=run.where.item(),
                run=run,
                step=step,
            )
        )
        return step.token_ids.clone()

    def greedy(self, hidden, ids, _space):
        ids.copy_((hidden + 1) % VOCAB)
        return torch.nn.functional.one_hot(ids, VOCAB).bfloat16()


def make(max_tokens=4096, max_positions=POSITIONS, max_decodes=32):
    model = Model()
    caches = SimpleNamespace(
        kv=torch.zeros(1), block_tokens=BLOCK_TOKENS, zero_slots=lambda s: model.zeroed.append(s.item())
    )

    def capture(work):
        work()
        return work

    return PromptGraphs(model, caches, max_tokens, max_positions, max_decodes, capture), model


@pytest.fixture
def made():
    return make()


@pytest.mark.parametrize(
    ("max_tokens", "max_positions", "longest"),
    [(16384, 4096, 2048), (4096, 1000, 1024), (4096, 1024, 1024), (512, 4096, 512), (513, 4096, 640), (64, 64, 128)],
)
def test_lengths_cover_the_longest_step(max_tokens, max_positions, longest):
    graphs, _ = make(max_tokens, max_positions)
    assert graphs.lengths[-1] == longest
    assert graphs.lengths == tuple(n for n in LENGTHS if n <= longest)


def test_every_length_runs_once_before_it_is_captured_the_longest_first(made):
    """A shorter one takes other products than a longer: its first use must not be captured either."""
    graphs, model = made
    sizes = [len(s.ids) for s in model.steps]
    assert sizes == [tokens for tokens in reversed(graphs.lengths) for _ in ("before", "captured")]


def test_capture_writes_no_key_and_runs_on_one_token(made):
    for seen in made[1].steps:
        assert seen.live == 1
        assert set(seen.write) == {-1}
        assert set(seen.read) == {0}


@settings(max_examples=60, deadline=None)
@given(tokens=st.integers(2, 1024), slot=st.integers(0, 31))
def test_what_is_laid_out(tokens, slot):
    graphs, model = make(1024, 4096)
    segment = prompt(tokens, slot)
    assert graphs.launch(segment).id() == (segment.token_ids[-1] + 1) % VOCAB
    seen, size = model.steps[-1], next(n for n in LENGTHS if n >= tokens)
    slots = [b * BLOCK_TOKENS + i for b in segment.block_ids for i in range(BLOCK_TOKENS)][:tokens]
    padding = size - tokens
    assert (seen.live, seen.slot, model.zeroed[-1]) == (tokens, slot, slot)
    assert seen.ids == [*segment.token_ids, *[0] * padding]
    assert seen.write == [*slots, *[-1] * padding]
    assert seen.read == [*slots, *slots[:1] * padding]
    assert seen.positions == list(range(size))
    assert (seen.run.start, seen.run.end, seen.run.position, seen.step.decodes) == (0, size, 0, 0)
    assert seen.step.live.dtype == torch.int32


def test_padding_stays_within_the_positions(made):
    assert made[1].steps[0].positions[-30:] == [*range(994, 999), *[999] * 25]


def test_what_one_prompt_left_is_no_part_of_the_next(made):
    graphs, model = made
    graphs.launch(prompt(1000, 1)).id()
    graphs.launch(prompt(900, 2)).id()
    assert set(model.steps[-1].write[900:]) == {-1}
    assert len(model.steps[-1].write) == 1024


def test_a_prompt_that_is_not_read_is_not_overwritten(made):
    graphs, _ = made
    waiting = graphs.launch(prompt(20))
    with pytest.raises(RuntimeError, match="a prompt is queued; read its id before the next"):
        graphs.launch(prompt(30))
    waiting.id()
    graphs.launch(prompt(30)).id()


def test_blocks_must_cover_the_prompt(made):
    with pytest.raises(ValueError, match="request p: 2 KV blocks of 16 tokens, but its step ends at token 33"):
        made[0].launch(prompt(33, blocks=(1, 2)))
    made[0].launch(prompt(32, blocks=(1, 2))).id()


WANTS = SamplingParams(max_tokens=8, temperature=0.0, prompt_logprobs=0)


@pytest.mark.parametrize(
    ("segments", "taken"),
    [
        ([prompt(2)], True),
        ([prompt(1024)], True),
        ([prompt(1025)], False),
        ([prompt(1)], False),  # a decoding sequence's own graph takes it
        ([prompt(20, position=16, blocks=range(9))], False),
        ([prompt(20, fresh=False)], False),
        ([*decoding(32), prompt(20)], True),
        ([*decoding(33), prompt(20)], False),
        ([*decoding(1, tokens=2), prompt(20)], False),
        ([prompt(20, 1), prompt(20)], False),
        ([prompt(1, 1), prompt(20)], False),
        ([prompt(20, params=WANTS)], False),
        ([*decoding(1, params=WANTS), prompt(20)], False),
        (decoding(1), False),
    ],
)
def test_what_it_takes(made, segments, taken):
    assert made[0].takes(Batch(0, tuple(segments))) is taken


def test_no_more_decode_beside_than_have_graphs():
    graphs, _ = make(max_decodes=2)
    assert graphs.takes(Batch(0, (*decoding(2), prompt(20))))
    assert not graphs.takes(Batch(0, (*decoding(3), prompt(20))))
