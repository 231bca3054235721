"""engine/graphs without a GPU: what is laid out for a step, which graph runs, and what comes back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import UNKNOWN, Batch, Segment
from engine.graphs import LANES, DecodeGraphs, Inputs
from engine.request import SamplingParams
from engine.steps import build_step

BLOCK_TOKENS = 4
WIDTH = 5
VOCAB = 64
GREEDY = SamplingParams(max_tokens=8, temperature=0.0)
CPU = torch.device("cpu")


def segment(name, position, slot, blocks, *, token=7, tokens=1, params=GREEDY, feed=None):
    return Segment(name, (token,) * tokens, position, tuple(blocks), slot, False, True, params, feed=feed)


class Model:
    """Logits whose largest entry says which token, position and slot the row was given; keeps what it saw."""

    def __init__(self):
        self.steps = []

    def forward(self, step, _caches):
        self.steps.append(step)
        tokens = torch.where(step.token_ids < 0, step.fed_ids[(-1 - step.token_ids).clamp_min(0)], step.token_ids)
        return (tokens + 2 * step.positions + 3 * step.state_slots) % VOCAB

    def greedy(self, hidden, ids, space):
        assert (space.best.shape, space.arrived.shape) == ((6,), (6,))
        logits = torch.nn.functional.one_hot(hidden, VOCAB).bfloat16()
        ids.copy_(logits.float().argmax(-1))
        return logits


@pytest.fixture
def captured():
    """(graphs for up to 6 sequences, sizes in the order of their capture); a replay runs the work again."""
    sizes = []

    def capture(work):
        work()
        sizes.append(made.model.steps[-1].decodes)
        return work

    made = SimpleNamespace(model=Model())
    caches = SimpleNamespace(kv=torch.zeros(1), block_tokens=BLOCK_TOKENS)
    return DecodeGraphs(made.model, caches, 6, BLOCK_TOKENS * WIDTH, capture), sizes


def test_every_size_is_captured_once_the_largest_first(captured):
    assert captured[1] == [6, 5, 4, 3, 2, 1]


def test_capture_runs_on_distinct_slots_and_one_token_each(captured):
    first = captured[0].model.steps[0]
    assert first.decodes == 6
    assert captured[0].inputs.step(6, captured[0].ids).lengths.shape == (6,)
    assert len(captured[0].model.steps) == 7  # once before, since what is set up on first use must not be captured


@pytest.mark.parametrize("n", range(1, 7))
def test_a_step_runs_the_graph_of_its_size(captured, n):
    made, _ = captured
    segments = [segment(f"r{i}", 3 * i, 5 - i, range(i, i + 5), token=10 + i) for i in range(n)]
    ids, logits = made.run(segments)
    assert ids == [(10 + i + 6 * i + 3 * (5 - i)) % VOCAB for i in range(n)]
    assert logits.shape == (n, VOCAB)


def said(token, position, slot):
    return (token + 2 * position + 3 * slot) % VOCAB


def test_a_step_takes_its_ids_from_the_rows_of_the_step_before(captured):
    """Row 1 of the first step has ended: the second runs rows 2 and 0, before the first was read."""
    made, _ = captured
    first = made.launch([segment(f"r{i}", 1, i, range(5), token=20 + i) for i in range(3)])
    second = made.launch(
        [segment("r2", 2, 2, range(5), token=UNKNOWN, feed=2), segment("r0", 2, 0, range(5), token=UNKNOWN, feed=0)]
    )
    before = [said(20 + i, 1, i) for i in range(3)]
    assert first.ids() == before  # not overwritten by what was queued after it
    assert second.ids() == [said(before[2], 2, 2), said(before[0], 2, 0)]


def test_a_chain_of_steps_is_what_single_steps_are(captured):
    made, _ = captured
    token, alone = 5, []
    for position in range(6):
        ids, _ = made.run([segment("a", position, 1, range(5), token=token)])
        alone += ids
        token = ids[0]
    before, chained = made.launch([segment("a", 0, 1, range(5), token=5)]), []
    for position in range(1, 6):
        after = made.launch([segment("a", position, 1, range(5), token=UNKNOWN, feed=0)])
        chained += before.ids()
        before = after
    assert [*chained, *before.ids()] == alone


def test_what_is_not_read_is_not_overwritten(captured):
    made, _ = captured
    one = [segment("a", 0, 0, range(5))]
    waiting = [made.launch(one) for _ in range(LANES)]
    with pytest.raises(RuntimeError, match="2 steps are queued; read the ids of the first"):
        made.launch(one)
    waiting[0].ids()
    made.launch(one)


def test_ids_come_all_from_the_step_before_or_none(captured):
    made, _ = captured
    with pytest.raises(ValueError, match="all its ids from the step before, or none"):
        made.launch([segment("a", 0, 0, range(5), feed=0), segment("b", 0, 1, range(5))])


def test_what_it_takes(captured):
    made, _ = captured
    one = segment("a", 3, 0, [0])
    assert made.takes(Batch(0, (one,)))
    assert made.takes(Batch(0, (one,) * 6))
    assert not made.takes(Batch(0, (one,) * 7))
    assert not made.takes(Batch(0, (one, segment("b", 0, 1, [1], tokens=2))))
    wants_prompt = SamplingParams(max_tokens=8, temperature=0.0, prompt_logprobs=0)
    assert not made.takes(Batch(0, (segment("c", 0, 1, [1], params=wants_prompt),)))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_inputs_say_what_an_eager_step_says(data):
    """The same integers as engine/steps, whatever was in the buffer before."""
    n = data.draw(st.integers(1, 6))
    pool = data.draw(st.permutations(range(64)))
    slots = data.draw(st.permutations(range(8)))
    segments = []
    for i in range(n):
        position = data.draw(st.integers(0, BLOCK_TOKENS * WIDTH - 1))
        used = position // BLOCK_TOKENS + 1
        blocks = pool[i * WIDTH : i * WIDTH + data.draw(st.integers(used, WIDTH))]
        segments.append(segment(f"r{i}", position, slots[i], blocks, token=data.draw(st.integers(0, 99))))
    inputs = Inputs(6, WIDTH, CPU)
    lane = data.draw(st.integers(0, LANES - 1))
    inputs.host[lane].fill_(data.draw(st.integers(-9, 9)))
    inputs.fill(segments, BLOCK_TOKENS, lane)
    inputs.upload(n, lane)
    ours, eager = (
        inputs.step(n, torch.zeros(n, dtype=torch.int64)),
        build_step(Batch(0, tuple(segments)), BLOCK_TOKENS, CPU),
    )
    for name in ("token_ids", "positions", "kv_slots", "state_slots", "lengths"):
        assert getattr(ours, name).tolist() == getattr(eager, name).tolist(), name
    for i, s in enumerate(segments):
        used = s.position // BLOCK_TOKENS + 1
        assert ours.block_table[i, :used].tolist() == list(s.block_ids[:used])
    assert ours.decodes == eager.decodes == n
    assert ours.block_table.is_contiguous()


def test_blocks_that_do_not_cover_the_token_are_refused():
    inputs = Inputs(2, WIDTH, CPU)
    with pytest.raises(ValueError, match="request r: 1 KV blocks of 4 tokens, but its step ends at token 5"):
        inputs.fill([segment("r", 4, 0, [3])], BLOCK_TOKENS, 0)
    with pytest.raises(ValueError, match="a table row holds 5"):
        inputs.fill([segment("r", 20, 0, range(6))], BLOCK_TOKENS, 0)
