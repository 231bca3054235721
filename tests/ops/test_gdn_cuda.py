"""ops/gdn's decoding kernel against the torch reference: both models' heads, slots, states, several steps."""

from __future__ import annotations

import pytest
import torch

from engine.ops import gdn
from engine.ops.gdn import GdnWeights, cuda
from engine.ops.linear.quantize import quantize_per_tensor
from tests.ops.poison import relative_error

pytestmark = pytest.mark.gpu

DIM = 128
OUT_ERROR = 3e-3
"""Two roundings to bf16."""
STATE_ERROR = 1e-4
"""fp32, of k and v rounded to bf16: where the last fp32 bit of the convolution decides, the two differ."""

HEADS = [(16, 48), (16, 32), (16, 16), (1, 3)]


def make_weights(hk, hv, generator):
    def rand(*size):
        return torch.rand(*size, device="cuda", generator=generator)

    return GdnWeights(
        conv=rand((2 * hk + hv) * DIM, 4) - 0.5,
        decay_rate=-rand(hv) * 4,
        dt_bias=rand(hv) * 2 - 1,
        norm=rand(DIM) + 0.5,
        eps=1e-6,
        key_heads=hk,
        value_heads=hv,
        key_dim=DIM,
        value_dim=DIM,
    )


def on_cpu(weights):
    return GdnWeights(
        **{
            name: value.cpu() if isinstance(value, torch.Tensor) else value
            for name in weights.__slots__
            for value in (getattr(weights, name),)
        }
    )


def make_rows(m, weights, generator):
    channels = weights.conv.shape[0]
    widths = channels + weights.value_heads * DIM, 2 * weights.value_heads
    return tuple(torch.randn(m, w, device="cuda", generator=generator).bfloat16() for w in widths)


def make_state(slots, weights, generator):
    conv = torch.randn(slots, weights.conv.shape[0], 3, device="cuda", generator=generator).bfloat16()
    state = torch.randn(slots, weights.value_heads, DIM, DIM, device="cuda", generator=generator) * 0.3
    return conv, state


def reference(qkvz, ba, conv, state, slots, weights):
    """On copies, on the CPU -> (out, conv, state)."""
    conv, state, qkvz, ba = conv.cpu(), state.cpu(), qkvz.cpu(), ba.cpu()
    value_width = weights.value_heads * DIM
    b, a = ba.chunk(2, -1)
    out = gdn.decode(qkvz[:, :-value_width], qkvz[:, -value_width:], b, a, conv, state, slots.cpu(), on_cpu(weights))
    return out, conv, state


@pytest.mark.parametrize("m", [1, 2, 7, 32])
@pytest.mark.parametrize(("hk", "hv"), HEADS)
@pytest.mark.usefixtures("poison")
def test_three_steps_equal_the_reference(m, hk, hv, cuda_generator):
    weights = make_weights(hk, hv, cuda_generator)
    conv, state = make_state(m + 2, weights, cuda_generator)
    slots = torch.randperm(m + 2, device="cuda", generator=cuda_generator)[:m]
    untouched = [i for i in range(m + 2) if i not in slots.tolist()]
    conv[untouched], state[untouched] = float("nan"), float("nan")
    readers = torch.zeros(m * hk, dtype=torch.int32, device="cuda")
    for _ in range(3):
        qkvz, ba = make_rows(m, weights, cuda_generator)
        expected, conv_after, state_after = reference(qkvz, ba, conv, state, slots, weights)
        out = cuda.decode(qkvz, ba, conv, state, slots, weights, readers)
        assert relative_error(out, expected) < OUT_ERROR
        assert torch.equal(conv[slots].cpu(), conv_after[slots.cpu()])
        assert relative_error(state[slots], state_after[slots.cpu()]) < STATE_ERROR
    assert bool(conv[untouched].isnan().all())
    assert bool(state[untouched].isnan().all())
    assert int(readers.abs().sum()) == 0


@pytest.mark.usefixtures("poison")
def test_quantised_output_is_the_bf16_output_quantised(cuda_generator):
    weights = make_weights(16, 48, cuda_generator)
    conv, state = make_state(4, weights, cuda_generator)
    qkvz, ba = make_rows(4, weights, cuda_generator)
    slots, readers = torch.arange(4, device="cuda"), torch.zeros(64, dtype=torch.int32, device="cuda")
    input_scale = torch.tensor(0.021, device="cuda")
    plain = cuda.decode(qkvz, ba, conv.clone(), state.clone(), slots, weights, readers)
    codes = cuda.decode(qkvz, ba, conv, state, slots, weights, readers, input_scale=input_scale)
    assert torch.equal(codes.float(), quantize_per_tensor(plain, input_scale))


@pytest.mark.parametrize("a", [-40.0, 19.9, 20.1, 60.0])
@pytest.mark.usefixtures("poison")
def test_extreme_gates_stay_finite_and_right(a, cuda_generator):
    weights = make_weights(1, 3, cuda_generator)
    conv, state = make_state(1, weights, cuda_generator)
    qkvz, ba = make_rows(1, weights, cuda_generator)
    ba[:, 3:] = a
    slots, readers = torch.zeros(1, dtype=torch.int64, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
    expected, _, state_after = reference(qkvz, ba, conv, state, slots, weights)
    out = cuda.decode(qkvz, ba, conv, state, slots, weights, readers)
    assert relative_error(out, expected) < OUT_ERROR
    assert relative_error(state, state_after) < STATE_ERROR


def test_swapped_key_heads_are_seen(cuda_generator):
    weights = make_weights(16, 48, cuda_generator)
    conv, state = make_state(1, weights, cuda_generator)
    qkvz, ba = make_rows(1, weights, cuda_generator)
    slots, readers = torch.zeros(1, dtype=torch.int64, device="cuda"), torch.zeros(16, dtype=torch.int32, device="cuda")
    expected, _, _ = reference(qkvz, ba, conv, state, slots, weights)
    swapped = qkvz.clone()
    swapped[:, 2048:2176], swapped[:, 2176:2304] = qkvz[:, 2176:2304], qkvz[:, 2048:2176]
    out = cuda.decode(swapped, ba, conv, state, slots, weights, readers)
    assert relative_error(out, expected) > 10 * OUT_ERROR


def test_other_head_sizes_are_refused(cuda_generator):
    weights = make_weights(1, 3, cuda_generator)
    conv, state = make_state(1, weights, cuda_generator)
    qkvz, ba = make_rows(1, weights, cuda_generator)
    slots, readers = torch.zeros(1, dtype=torch.int64, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
    with pytest.raises(ValueError, match="expected 128, 128, bf16"):
        cuda.decode(qkvz.float(), ba, conv, state, slots, weights, readers)
    with pytest.raises(ValueError, match="readers 0"):
        cuda.decode(qkvz, ba, conv, state, slots, weights, readers[:0])
