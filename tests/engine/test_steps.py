"""engine/steps: where each token of a step lies, beside the same worked out token by token; what it refuses."""

from __future__ import annotations

import random

import pytest
import torch

from engine.batch import Batch, Segment
from engine.request import SamplingParams
from engine.steps import build_step

CPU = torch.device("cpu")


def segment(index, position, tokens, blocks):
    ids = tuple(1000 * index + position + i for i in range(tokens))
    return Segment(f"r{index}", ids, position, blocks, 7 - index, False, True, SamplingParams(max_tokens=1))


def drawn(rng, block_tokens, decodes, runs):
    """Decoding segments, then chunks, of one token at times; some with more blocks than they need yet."""
    segments = []
    for index in range(decodes + runs):
        tokens = 1 if index < decodes else rng.choice([2, 3, block_tokens, 50])
        position = rng.choice([0, 1, block_tokens - 1, block_tokens, 5 * block_tokens, rng.randrange(90)])
        needed = -(-(position + tokens) // block_tokens)
        blocks = tuple(rng.sample(range(500), needed + rng.choice([0, 0, 1, 9])))
        segments.append(segment(index, position, tokens, blocks))
    return Batch(3, tuple(segments))


@pytest.mark.parametrize("for_kernels", [True, False])
@pytest.mark.parametrize("block_tokens", [2, 16])
@pytest.mark.parametrize(("decodes", "runs"), [(1, 0), (4, 0), (0, 1), (0, 3), (3, 2)])
def test_every_token_where_its_block_lies(decodes, runs, block_tokens, for_kernels):
    rng = random.Random(decodes * 10 + runs)
    for _ in range(20):
        batch = drawn(rng, block_tokens, decodes, runs)
        step = build_step(batch, block_tokens, CPU, for_kernels=for_kernels)
        slots = [
            [
                s.block_ids[p // block_tokens] * block_tokens + p % block_tokens
                for p in range(s.position + len(s.token_ids))
            ]
            for s in batch.segments
        ]
        assert step.token_ids.tolist() == [token for s in batch.segments for token in s.token_ids]
        assert step.positions.tolist() == [
            p for s in batch.segments for p in range(s.position, s.position + len(s.token_ids))
        ]
        assert step.kv_slots.tolist() == [
            slot for s, of_s in zip(batch.segments, slots, strict=True) for slot in of_s[s.position :]
        ]
        assert step.decodes == decodes
        assert step.state_slots.tolist() == [s.state_slot for s in batch.segments[:decodes]]
        assert [run.kv_slots.tolist() for run in step.runs] == slots[decodes:]
        rows = [(run.position, run.end - run.start, run.state_slot) for run in step.runs]
        assert rows == [(s.position, len(s.token_ids), s.state_slot) for s in batch.segments[decodes:]]
        assert [run.start for run in step.runs] == [decodes, *(run.end for run in step.runs)][: len(step.runs)]
        tensors = [step.token_ids, step.positions, step.kv_slots, step.state_slots]
        if decodes:
            assert step.lengths.tolist() == [s.position + 1 for s in batch.segments[:decodes]]
            used = [s.position // block_tokens + 1 for s in batch.segments[:decodes]]
            assert step.block_table.shape == (decodes, max(used))
            for row, count, s in zip(step.block_table.tolist(), used, batch.segments, strict=False):
                assert row[:count] == list(s.block_ids[:count])
            tensors += [step.lengths, step.block_table]
        else:
            assert step.lengths is step.block_table is None
        assert {t.dtype for t in tensors} == {torch.int64}


@pytest.mark.parametrize(("position", "tokens"), [(32, 1), (31, 2), (0, 33)])
def test_one_token_beyond_the_blocks_is_refused(position, tokens):
    build_step(Batch(1, (segment(0, position, tokens, (5, 3, 4)),)), 16, CPU)
    with pytest.raises(ValueError, match="request r0: 2 KV blocks of 16 tokens, but its step ends at token 33"):
        build_step(Batch(1, (segment(0, position, tokens, (5, 3)),)), 16, CPU)
