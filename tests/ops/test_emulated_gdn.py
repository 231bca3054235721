"""The GDN decoding launch on a CPU (tests/ops/emulator): both models' ratios of heads, any slots, fresh states."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import library
from engine.ops import gdn
from engine.ops.gdn import GdnWeights, cuda
from tests.ops import emulator
from tests.ops.poison import relative_error

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs g++ to compile kernels for the CPU")

DIM = 128
OUT_ERROR, STATE_ERROR = 3e-3, 1e-4
"""As on a GPU (test_gdn_cuda.py)."""


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    monkeypatch.setattr(library, "call", emulator.build("gdn"))


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize(("hk", "hv"), [(2, 4), (2, 6), (2, 2), (1, 3)])
@pytest.mark.usefixtures("poison")
def test_two_steps_equal_the_reference(m, hk, hv, generator):
    channels = (2 * hk + hv) * DIM
    weights = GdnWeights(
        conv=torch.rand(channels, 4, generator=generator) - 0.5,
        decay_rate=-torch.rand(hv, generator=generator) * 4,
        dt_bias=torch.rand(hv, generator=generator) * 2 - 1,
        norm=torch.rand(DIM, generator=generator) + 0.5,
        eps=1e-6,
        key_heads=hk,
        value_heads=hv,
        key_dim=DIM,
        value_dim=DIM,
    )
    slots = torch.randperm(m + 2, generator=generator)[:m]
    conv, state = (
        torch.full((m + 2, channels, 3), float("nan")).bfloat16(),
        torch.full((m + 2, hv, DIM, DIM), float("nan")),
    )
    conv[slots], state[slots] = 0, 0
    readers = torch.zeros(m * hk, dtype=torch.int32)
    for _ in range(2):
        qkvz = torch.randn(m, channels + hv * DIM, generator=generator).bfloat16()
        ba = torch.randn(m, 2 * hv, generator=generator).bfloat16()
        conv_after, state_after = conv.clone(), state.clone()
        qkv, z = qkvz[:, :channels], qkvz[:, channels:]
        expected = gdn.decode(qkv, z, *ba.chunk(2, -1), conv_after, state_after, slots, weights)
        out = cuda.decode(qkvz, ba, conv, state, slots, weights, readers)
        assert relative_error(out, expected) < OUT_ERROR
        assert torch.equal(conv[slots], conv_after[slots])
        assert relative_error(state[slots], state_after[slots]) < STATE_ERROR
    untouched = [i for i in range(m + 2) if i not in slots.tolist()]
    assert bool(conv[untouched].isnan().all())
    assert bool(state[untouched].isnan().all())
    assert int(readers.abs().sum()) == 0
