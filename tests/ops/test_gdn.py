"""ops/gdn against the recurrence written token by token; chunks, carried state, slots."""

from __future__ import annotations

import pytest
import torch

from engine.ops import gdn
from engine.ops.gdn import GdnWeights, naive

HK, HV, DK, DV = 2, 6, 16, 8
CHANNELS = 2 * HK * DK + HV * DV


def make_weights(generator):
    return GdnWeights(
        conv=torch.randn(CHANNELS, 4, generator=generator) * 0.5,
        decay_rate=-torch.rand(HV, generator=generator) * 4,
        dt_bias=torch.randn(HV, generator=generator),
        norm=torch.rand(DV, generator=generator) + 0.5,
        eps=1e-6,
        key_heads=HK,
        value_heads=HV,
        key_dim=DK,
        value_dim=DV,
    )


def make_rows(tokens, generator):
    widths = (CHANNELS, HV * DV, HV, HV)
    return tuple(torch.randn(tokens, w, generator=generator) for w in widths)


def make_state(slots, generator):
    conv = torch.randn(slots, CHANNELS, 3, generator=generator)
    return conv, torch.randn(slots, HV, DV, DK, generator=generator) * 0.3


@pytest.mark.parametrize("tokens", [1, 2, 3, 31, 32, 33, 64, 65, 150])
def test_prefill_equals_the_recurrence_and_leaves_other_slots_alone(tokens, generator):
    weights, rows = make_weights(generator), make_rows(tokens, generator)
    conv, state = make_state(3, generator)
    conv_before, state_before = conv.clone(), state.clone()
    expected, conv_after, state_after = naive.run(*rows, conv[1], state[1], weights)
    actual = gdn.prefill(*rows, conv, state, 1, weights)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(conv[1], conv_after, rtol=0, atol=0)
    torch.testing.assert_close(state[1], state_after, rtol=1e-4, atol=1e-5)
    for other in (0, 2):
        assert torch.equal(conv[other], conv_before[other])
        assert torch.equal(state[other], state_before[other])


def test_decode_steps_each_sequence_in_its_own_slot(generator):
    weights, (qkv, z, b, a) = make_weights(generator), make_rows(3, generator)
    conv, state = make_state(5, generator)
    conv[[0, 3]], state[[0, 3]] = float("nan"), float("nan")
    slots = [4, 1, 2]
    expected = [
        naive.run(qkv[i : i + 1], z[i : i + 1], b[i : i + 1], a[i : i + 1], conv[s], state[s], weights)
        for i, s in enumerate(slots)
    ]
    actual = gdn.decode(qkv, z, b, a, conv, state, torch.tensor(slots), weights)
    for row, slot, (out, conv_after, state_after) in zip(actual, slots, expected, strict=True):
        torch.testing.assert_close(row, out[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(conv[slot], conv_after, rtol=0, atol=0)
        torch.testing.assert_close(state[slot], state_after, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cuts", [(1, 1), (64, 64), (5, 90), (70, 1, 3)], ids=str)
def test_pieces_equal_the_whole(cuts, generator):
    weights, rows = make_weights(generator), make_rows(sum(cuts), generator)
    conv, state = (torch.zeros_like(x) for x in make_state(2, generator))
    whole = gdn.prefill(*rows, conv, state, 0, weights)
    pieces, start = [], 0
    for size in cuts:
        part = tuple(x[start : start + size] for x in rows)
        pieces.append(gdn.prefill(*part, conv, state, 1, weights))
        start += size
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state[1], state[0], rtol=1e-4, atol=1e-5)
    assert torch.equal(conv[1], conv[0])


@pytest.mark.parametrize("lengths", [(1, 1), (32, 32, 32), (3, 130, 1, 32, 65), (5, 2), (200, 7, 128)], ids=str)
def test_runs_equal_each_sequence_alone(lengths, generator):
    weights = make_weights(generator)
    rows = make_rows(sum(lengths), generator)
    conv, state = make_state(9, generator)
    slots = torch.randperm(9, generator=generator)[: len(lengths)]
    others = [slot for slot in range(9) if slot not in slots]
    conv[others], state[others] = float("nan"), float("nan")
    conv_alone, state_alone = conv.clone(), state.clone()
    alone, start = [], 0
    for length, slot in zip(lengths, slots.tolist(), strict=True):
        part = tuple(x[start : start + length] for x in rows)
        alone.append(gdn.prefill(*part, conv_alone, state_alone, slot, weights))
        start += length
    runs = gdn.chunks(lengths, slots.tolist(), torch.device("cpu"))
    together = gdn.prefill_runs(*rows, conv, state, runs, weights)
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, state_alone, rtol=1e-4, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(conv, conv_alone, rtol=0, atol=0, equal_nan=True)


def test_a_run_that_is_not_finite_stays_alone(generator):
    weights, lengths = make_weights(generator), (70, 3, 20)
    rows = make_rows(sum(lengths), generator)
    for x in rows:
        x[70:73] = float("nan")
    conv, state = make_state(3, generator)
    runs = gdn.chunks(lengths, range(3), torch.device("cpu"))
    out = gdn.prefill_runs(*rows, conv, state, runs, weights)
    assert out.isfinite().all(-1).tolist() == [not 70 <= row < 73 for row in range(93)]
    assert state.isfinite().flatten(1).all(-1).tolist() == [True, False, True]


def test_strong_decay_does_not_overflow(generator):
    weights, (qkv, z, b, a) = make_weights(generator), make_rows(130, generator)
    conv, state = make_state(1, generator)
    out = gdn.prefill(qkv, z, b, a + 60.0, conv, state, 0, weights)
    assert bool(out.isfinite().all())
    assert bool(state.isfinite().all())


def test_bfloat16_stays_near_the_recurrence(generator):
    weights = make_weights(generator)
    rows = tuple(x.bfloat16() for x in make_rows(100, generator))
    conv, state = make_state(1, generator)
    conv = conv.bfloat16()
    expected, _, _ = naive.run(*rows, conv[0], state[0], weights)
    actual = gdn.prefill(*rows, conv, state, 0, weights)
    assert actual.dtype == torch.bfloat16
    error = (actual.float() - expected).abs()
    assert float(error.mean() / expected.abs().mean()) < 2**-6
