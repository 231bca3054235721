"""The mixture of experts on one GPU against the torch reference: four layers of the 35B's widths.

Random routers leave many tokens with two experts that are nearly equally good, and where the two paths choose another
one a row of logits is off by far more than rounding. So most rows must be close, and every chosen id nearly the best.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from engine.ops.moe import cuda_prefill
from tests.engine.cuda.conftest import Sequence, last_logits

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

MEDIAN_ERROR = 2.5e-2
"""Of rows of logits, as for the dense model."""
NEAR_TIE_NATS = 0.5
"""Bfloat16 logits of 8 to 16 have steps of 0.06; a chosen expert of eight that differs moves them by several."""


def errors(runner, reference, segments, *, graph=False):
    ours, expected = last_logits(runner, segments, graph=graph), last_logits(reference, segments)
    logprobs = expected.log_softmax(-1)
    gap = logprobs.amax(-1) - logprobs.gather(-1, ours.argmax(-1)[:, None])[:, 0]
    error = (ours - expected).norm(dim=-1) / expected.norm(dim=-1)
    print(f"{len(segments)} rows, error {error.quantile(0.5):.2e}, at most {error.max():.2e}; gap {gap.max():.3f}")
    return float(error.median()), float(gap.max()), expected.argmax(-1).tolist()


@pytest.mark.parametrize("longest", [1, 9, 33, 90])
def test_prefill_of_many_runs(moe_runner, moe_reference, longest):
    """Sixteen prompts in one step: beside 32 tokens the streaming kernels, beyond it the sorted ones."""
    segments = [
        Sequence(100 + i, 1 + (longest - 1) * i // 15, i).segment(1 + (longest - 1) * i // 15) for i in range(16)
    ]
    segments.sort(key=lambda s: len(s.token_ids) > 1)
    median, gap, _ = errors(moe_runner, moe_reference, segments)
    assert median < MEDIAN_ERROR
    assert gap < NEAR_TIE_NATS


def test_prefill_multiplied_by_a_library(moe_runner, moe_reference, monkeypatch):
    """As a step of LIBRARY_TOKENS is."""
    monkeypatch.setattr(cuda_prefill, "LIBRARY_TOKENS", 600)
    taken = []
    feed_forward = cuda_prefill.feed_forward
    monkeypatch.setattr(cuda_prefill, "feed_forward", lambda *a: taken.append(a[0].shape[0]) or feed_forward(*a))
    segments = [Sequence(150 + i, 6 * i + 1, i).segment(6 * i + 1) for i in range(16)]
    median, gap, _ = errors(moe_runner, moe_reference, segments)
    assert taken == [sum(6 * i + 1 for i in range(16))] * len(moe_runner.model.layers)
    assert median < MEDIAN_ERROR
    assert gap < NEAR_TIE_NATS


@pytest.mark.parametrize("batch", [1, 2, 4, 8, 17, 32])
def test_decode(moe_runner, moe_reference, batch):
    """By graph; a step's error is taken over several steps, since a batch of one has one row."""
    sequences = [Sequence(200 + i, 5 + 3 * i, i) for i in range(batch)]
    for s in sequences:
        segment = s.segment(s.length)
        last_logits(moe_runner, [segment])
        s.ids.append(int(last_logits(moe_reference, [segment]).argmax()))
    medians = []
    for _ in range(5 if batch < 8 else 2):
        median, gap, ids = errors(moe_runner, moe_reference, [s.segment(1) for s in sequences], graph=True)
        medians.append(median)
        assert gap < NEAR_TIE_NATS
        for s, token in zip(sequences, ids, strict=True):
            s.ids.append(token)
    assert sorted(medians)[len(medians) // 2] < MEDIAN_ERROR


def test_nothing_is_widened_or_unseen(moe_runner):
    census = moe_runner.census()
    assert not census.widened
    assert not census.absent
    weights = sum(sum(row.resident.values()) for row in census.rows if row.module != "space")
    assert weights <= census.shipped_bytes * 1.02
    assert moe_runner.info()["reference_ops"] == []


@pytest.mark.parametrize("leaf", ["gate_up_proj", "down_proj"])
def test_an_error_in_one_scale_is_seen(moe_runner, moe_reference, leaf, monkeypatch):
    owner = moe_runner.model.layers[1].mlp
    weight = getattr(owner, leaf)
    monkeypatch.setattr(owner, leaf, dataclasses.replace(weight, row_scale=weight.row_scale * 1.10))
    segments = [Sequence(400 + i, 4, i).segment(4) for i in range(16)]
    assert errors(moe_runner, moe_reference, segments)[0] > MEDIAN_ERROR


def test_a_swapped_router_row_is_seen(moe_runner, moe_reference, monkeypatch):
    owner = moe_runner.model.layers[0].mlp
    monkeypatch.setattr(owner, "router", torch.roll(owner.router, 1, 0).contiguous())
    segments = [Sequence(420 + i, 4, i).segment(4) for i in range(16)]
    assert errors(moe_runner, moe_reference, segments)[0] > MEDIAN_ERROR
