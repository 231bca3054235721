"""ops/attention against one head, one token at a time; paging, FP8, and what stale blocks must not do."""

from __future__ import annotations

import pytest
import torch

from engine.ops import attention
from engine.ops.attention import naive

BLOCK, KV_HEADS, HEADS, DIM = 4, 2, 6, 16


def make_cache(lengths, generator, dtype, scale=1.0):
    """Caches full of NaN except for the sequences' own tokens, whose blocks are dealt in shuffled order."""
    blocks = [-(-n // BLOCK) for n in lengths]
    order = torch.randperm(sum(blocks) + 3, generator=generator).tolist()
    tables = [[order.pop() for _ in range(n)] for n in blocks]
    k_cache = torch.full((sum(blocks) + 3, BLOCK, KV_HEADS, DIM), float("nan")).to(dtype)
    v_cache = k_cache.clone()
    for table, length in zip(tables, lengths, strict=True):
        slots = flat(table)[:length]
        for cache in (k_cache, v_cache):
            values = torch.randn(length, KV_HEADS, DIM, generator=generator)
            attention.write(cache, values if dtype.itemsize == 1 else values.to(dtype), slots, scale)
    return tables, k_cache, v_cache


def flat(table):
    return (torch.tensor(table)[:, None] * BLOCK + torch.arange(BLOCK)).flatten()


@pytest.mark.parametrize("lengths", [(1,), (4, 1, 9), (13, 8, 8, 2)], ids=str)
@pytest.mark.parametrize("kv", ["float32", "float8_e4m3fn"])
def test_decode_equals_the_specification_with_poisoned_blocks(lengths, kv, generator):
    dtype, scale = getattr(torch, kv), 0.25 if kv != "float32" else 1.0
    tables, k_cache, v_cache = make_cache(lengths, generator, dtype, scale)
    width = max(map(len, tables))
    table = torch.tensor([t + [0] * (width - len(t)) for t in tables])
    where = attention.pages(table, torch.tensor(lengths), max(lengths), BLOCK)
    q = torch.randn(len(lengths), HEADS, DIM, generator=generator)
    actual = attention.decode(q, k_cache, v_cache, where, scale, scale)
    for row, (t, length) in enumerate(zip(tables, lengths, strict=True)):
        expected = naive.attend(q[row], k_cache, v_cache, t, length, scale, scale)
        torch.testing.assert_close(actual[row], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("position", "tokens"), [(0, 1), (0, 11), (5, 7), (12, 1)])
@pytest.mark.parametrize("kv", ["float32", "float8_e4m3fn"])
def test_prefill_is_causal_over_cached_and_new_tokens(position, tokens, kv, generator):
    dtype, scale = getattr(torch, kv), 0.25 if kv != "float32" else 1.0
    total = position + tokens
    (table,), k_cache, v_cache = make_cache((total,), generator, dtype, scale)
    q = torch.randn(tokens, HEADS, DIM, generator=generator)
    actual = attention.prefill(q, k_cache, v_cache, flat(table)[:total], position, scale, scale)
    for row in range(tokens):
        expected = naive.attend(q[row], k_cache, v_cache, table, position + row + 1, scale, scale)
        torch.testing.assert_close(actual[row], expected, rtol=1e-5, atol=1e-5)


def test_write_touches_only_its_slots(generator):
    cache = torch.randn(3, BLOCK, KV_HEADS, DIM, generator=generator)
    before = cache.clone()
    values = torch.randn(2, KV_HEADS, DIM, generator=generator)
    attention.write(cache, values, torch.tensor([9, 2]), 1.0)
    before.view(-1, KV_HEADS, DIM)[9], before.view(-1, KV_HEADS, DIM)[2] = values
    assert torch.equal(cache, before)
