"""ops/sample against Python lists; ties, truncation and the shape of the draws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.ops import sample
from engine.ops.sample import naive


def draw(logits, uniform, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    def row(value, dtype=torch.float32):
        return torch.tensor([value], dtype=dtype)

    settings_ = (row(uniform, torch.float64), row(temperature), row(top_k, torch.long), row(top_p), row(min_p))
    return int(sample.draw(torch.tensor([logits], dtype=torch.float32), *settings_)[0])


@settings(max_examples=150, deadline=None)
@given(
    logits=st.lists(st.integers(-6, 6), min_size=1, max_size=12),
    uniform=st.integers(0, 96).map(lambda i: (i + 0.5) / 97),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.integers(0, 6),
    top_p=st.sampled_from([0.07, 0.43, 0.81, 1.0]),
    min_p=st.sampled_from([0.0, 0.07, 0.41]),
)
def test_draw_equals_the_specification(logits, uniform, temperature, top_k, top_p, min_p):
    expected = naive.draw([float(x) for x in logits], uniform, temperature, top_k, top_p, min_p)
    assert draw([float(x) for x in logits], uniform, temperature, top_k, top_p, min_p) == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20))
def test_argmax_takes_the_lowest_id_of_a_tie(logits):
    assert int(sample.argmax(torch.tensor([logits], dtype=torch.float32))[0]) == naive.argmax(logits)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_masked_ids_are_never_drawn(uniform):
    assert draw([-math.inf, 0.0, -math.inf, 0.0, -math.inf], uniform) in (1, 3)


def test_uniform_grid_reproduces_the_distribution():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    grid = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    ones = torch.ones(1000)
    ids = sample.draw(logits.expand(1000, -1), grid, ones, torch.zeros(1000, dtype=torch.long), ones, ones * 0)
    frequency = ids.bincount(minlength=4) / 1000
    torch.testing.assert_close(frequency, logits.softmax(-1), rtol=0, atol=2e-3)


def test_rows_do_not_influence_each_other():
    rows = torch.randn(5, 30, generator=torch.Generator().manual_seed(3))
    u = torch.linspace(0.05, 0.9, 5, dtype=torch.float64)
    t, k = torch.tensor([0.5, 1.0, 2.0, 1.0, 0.7]), torch.tensor([0, 3, 0, 10, 2])
    p, m = torch.tensor([1.0, 0.9, 0.5, 1.0, 0.3]), torch.tensor([0.0, 0.0, 0.1, 0.2, 0.0])
    together = sample.draw(rows, u, t, k, p, m)
    alone = [int(sample.draw(*(x[i : i + 1] for x in (rows, u, t, k, p, m)))[0]) for i in range(5)]
    assert together.tolist() == alone
