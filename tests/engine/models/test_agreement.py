"""Our model against transformers' over the same weights: the computation itself, before any quantisation."""

from __future__ import annotations

import pytest
import torch

FLOAT32_TOLERANCE = 1e-3
"""Largest difference of a logit; both sides are float32, so only the order of additions differs."""

BFLOAT16_FACTOR = 1.5
"""How much further from float32 than transformers' own bfloat16 we may be."""


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 150])
def test_float32_logits_equal_transformers(reference, driver, prompt, tokens):
    ids = prompt(tokens)
    actual = driver.logits((driver.sequence("a", ids, 2, tokens=160), tokens))
    torch.testing.assert_close(actual, reference.logits(ids), rtol=0, atol=FLOAT32_TOLERANCE)


def test_tied_embeddings_are_the_lm_head(tied_reference, make_driver, prompt):
    ids = prompt(40)
    driver = make_driver(tied_reference, torch.float32)
    actual = driver.logits((driver.sequence("a", ids, 2), len(ids)))
    torch.testing.assert_close(actual, tied_reference.logits(ids), rtol=0, atol=FLOAT32_TOLERANCE)


def test_logits_are_worth_comparing(reference, prompt):
    """Neither flat nor so sharp that an error could hide."""
    assert 0.5 < float(reference.logits(prompt(100)).std()) < 20


def test_bfloat16_is_as_near_to_float32_as_transformers_is(reference, make_driver, prompt):
    ids = prompt(150)
    exact = reference.logits(ids)
    driver = make_driver(reference, torch.bfloat16)
    ours = driver.logits((driver.sequence("a", ids, 0, tokens=160), len(ids)))
    theirs = reference.logits(ids, torch.bfloat16)
    for norm in (torch.mean, torch.amax):
        assert float(norm((ours - exact).abs())) <= BFLOAT16_FACTOR * float(norm((theirs - exact).abs()))


def test_bfloat16_decode_is_as_near_to_float32_as_transformers_is(reference, make_driver, prompt):
    ids = prompt(80)
    exact = reference.logits(ids)
    driver = make_driver(reference, torch.bfloat16)
    sequence = driver.sequence("a", ids, 0)
    ours = torch.cat([driver.logits((sequence, 1)) for _ in ids])
    theirs = reference.logits(ids, torch.bfloat16)
    assert float((ours - exact).abs().mean()) <= BFLOAT16_FACTOR * float((theirs - exact).abs().mean())


def test_fp8_cache_moves_logits_by_its_own_rounding(dense_reference, make_driver, prompt):
    """E4M3 keeps 4 significant bits, so keys and values move by up to 1/16; one layer in four has them."""
    ids = prompt(90)
    exact = dense_reference.logits(ids)
    driver = make_driver(dense_reference, torch.float32, torch.float8_e4m3fn)
    ours = driver.logits((driver.sequence("a", ids, 0), len(ids)))
    spread = float(exact.std())
    error = float((ours - exact).abs().mean())
    assert 1e-4 * spread < error < 0.05 * spread
