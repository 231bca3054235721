"""What prefill adds on a GPU: weights in row order, products of both sizes, GDN over a run, the attention gate."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from engine.kernels import library
from engine.ops import attention, gdn, rope
from engine.ops.attention import cuda_prefill as attention_prefill
from engine.ops.gdn import GdnWeights
from engine.ops.linear import cuda
from engine.ops.linear.quantize import quantize_per_token
from engine.ops.rope.cuda import qk_norm_rope
from engine.ops.w4a16 import wide
from engine.weights.types import Fp8Weight, Nvfp4Weight
from tests.ops import padded
from tests.ops.padded import same
from tests.ops.poison import relative_error

pytestmark = pytest.mark.gpu

SIZES = [(16, 256), (48, 512), (1040, 1280)]
TOKENS = [1, 8, 9, 32, 33, 100, 257]
BF16_ERROR = 3e-3
"""One rounding of the result to bf16, and beyond 32 tokens one of each NVFP4 weight."""
WIDE_ERROR = 1e-5
"""Exact products, summed in fp32 by the tensor cores."""
SWIGLU_ERROR = 6e-3
"""Gate, up, silu and product are each rounded."""
GDN_ERROR = 6e-3
"""The output is rounded twice; products are TF32."""
STATE_ERROR = 5e-4


def nvfp4(n, k, generator):
    bits = torch.randint(0, 0x7F, (n, k // 16), dtype=torch.uint8, device="cuda", generator=generator)
    bits[torch.rand(bits.shape, device="cuda", generator=generator) < 0.02] = 0
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda", generator=generator)
    row_scale = torch.rand(n, device="cuda", generator=generator) * 1e-3 + 1e-4
    return Nvfp4Weight(packed, bits.view(torch.float8_e4m3fn), row_scale)


def fp8(n, k, generator):
    weight = (torch.randn(n, k, device="cuda", generator=generator) * 50).clamp(-448, 448).to(torch.float8_e4m3fn)
    scale = torch.rand(n, device="cuda", generator=generator) * 1e-3 + 1e-4
    return Fp8Weight(weight, scale, torch.tensor(0.02, device="cuda"))


def scratch(n, k):
    made = cuda.Scratch(4 * n * k, torch.device("cuda"))
    made.buffer.fill_(0xFF)
    return made


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_rows_are_the_dequantised_weight_to_the_bit(n, k, cuda_generator):
    four, eight = nvfp4(n, k, cuda_generator), fp8(n, k, cuda_generator)
    rows = scratch(n, k).rows(cuda.pack_w4a16(four))
    assert torch.equal(rows.float(), four.dequantize(torch.bfloat16).float())
    rows = scratch(n, k).rows(cuda.pack_w8a8(eight))
    assert torch.equal(rows.view(torch.uint8), eight.weight.view(torch.uint8))


@pytest.mark.parametrize("m", TOKENS)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_w4a16(m, n, k, cuda_generator):
    weight, space = nvfp4(n, k, cuda_generator), scratch(n, k)
    x = torch.randn(m, k, device="cuda", generator=cuda_generator).bfloat16()
    expected = x.double() @ weight.dequantize(torch.float32).double().T
    packed = cuda.pack_w4a16(weight)
    assert relative_error(cuda.project(x, packed, space), expected) < BF16_ERROR
    assert relative_error(cuda.planes(x, packed, space).sum(0), expected) < BF16_ERROR


@pytest.fixture
def _wide(monkeypatch):
    """Of the weight's units by warpgroup products, and not of rows written out: scratch has no room for any."""
    if library.arch_of(torch.device("cuda")) not in wide.WIDE_ARCHS:
        pytest.skip("needs a Hopper GPU")
    monkeypatch.setattr(wide, "WIDE", True)
    monkeypatch.setattr(wide, "FROM_TOKENS", 1)
    monkeypatch.setattr(wide, "TO_TOKENS", 1 << 20)


@pytest.mark.parametrize("m", [17, 32, 33, 64, 100, 129, 257, 1000])
@pytest.mark.parametrize(("n", "k"), [(256, 256), (768, 512), (1024, 1280), (5120, 2304)])
@pytest.mark.usefixtures("_wide", "poison")
def test_w4a16_by_warpgroup_products(m, n, k, cuda_generator):
    weight, none = nvfp4(n, k, cuda_generator), cuda.Scratch(0, torch.device("cuda"))
    x = torch.randn(m, k, device="cuda", generator=cuda_generator).bfloat16()
    expected = x.double() @ weight.dequantize(torch.float32).double().T
    packed = cuda.pack_w4a16(weight)
    assert relative_error(cuda.project(x, packed, none), expected) < BF16_ERROR
    assert relative_error(cuda.planes(x, packed, none).sum(0), expected) < WIDE_ERROR
    for parts in (1, k // 256):
        assert relative_error(wide.partial(x, packed.units, packed.row_scale, parts).sum(0), expected) < WIDE_ERROR


@pytest.mark.parametrize("m", [17, 32, 33, 64, 100, 129, 257, 1000])
@pytest.mark.parametrize(("n", "k"), [(128, 256), (384, 512), (1024, 1280)])
@pytest.mark.usefixtures("_wide", "poison")
def test_swiglu_by_warpgroup_products(m, n, k, cuda_generator):
    gate, up = nvfp4(n, k, cuda_generator), nvfp4(n, k, cuda_generator)
    x = torch.randn(m, k, device="cuda", generator=cuda_generator).bfloat16()
    gate_y, up_y = (x.double() @ w.dequantize(torch.float32).double().T for w in (gate, up))
    out = cuda.swiglu(x, cuda.pack_gate_up(gate, up), cuda.Scratch(0, torch.device("cuda")))
    assert relative_error(out, F.silu(gate_y) * up_y) < SWIGLU_ERROR


@pytest.mark.parametrize("m", TOKENS)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_w8a8(m, n, k, cuda_generator):
    weight, space = fp8(n, k, cuda_generator), scratch(n, k)
    x = (torch.randn(m, k, device="cuda", generator=cuda_generator) * 20).to(torch.float8_e4m3fn)
    expected = (x.double() * weight.input_scale) @ weight.dequantize(torch.float32).double().T
    packed = cuda.pack_w8a8(weight)
    assert relative_error(cuda.project(x, packed, space), expected) < BF16_ERROR
    assert relative_error(cuda.planes(x, packed, space).sum(0), expected) < BF16_ERROR


@pytest.mark.parametrize("m", TOKENS)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_w8a8_with_a_scale_per_token(m, n, k, cuda_generator):
    weight, space = fp8(n, k, cuda_generator), scratch(n, k)
    weight = Fp8Weight(weight.weight, weight.row_scale, None)
    x = (torch.randn(m, k, device="cuda", generator=cuda_generator) * torch.rand(m, 1, device="cuda")).bfloat16()
    values, scale = quantize_per_token(x)
    expected = (values.double() * scale) @ weight.dequantize(torch.float32).double().T
    packed = cuda.pack_w8a8(weight)
    assert relative_error(cuda.project(x, packed, space), expected) < BF16_ERROR
    assert relative_error(cuda.planes(x, packed, space).sum(0), expected) < BF16_ERROR


@pytest.mark.parametrize("m", TOKENS)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_swiglu_of_fp8(m, n, k, cuda_generator):
    gate, up = (Fp8Weight(w.weight, w.row_scale, None) for w in (fp8(n, k, cuda_generator), fp8(n, k, cuda_generator)))
    x = torch.randn(m, k, device="cuda", generator=cuda_generator).bfloat16()
    values, scale = quantize_per_token(x)
    gate_y, up_y = ((values.double() * scale) @ w.dequantize(torch.float32).double().T for w in (gate, up))
    out = cuda.swiglu(x, cuda.pack_gate_up(gate, up), scratch(2 * n, k))
    assert relative_error(out, F.silu(gate_y) * up_y) < SWIGLU_ERROR


@pytest.mark.parametrize("m", TOKENS)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_swiglu(m, n, k, cuda_generator):
    gate, up = nvfp4(n, k, cuda_generator), nvfp4(n, k, cuda_generator)
    x = torch.randn(m, k, device="cuda", generator=cuda_generator).bfloat16()
    gate_y, up_y = (x.double() @ w.dequantize(torch.float32).double().T for w in (gate, up))
    out = cuda.swiglu(x, cuda.pack_gate_up(gate, up), scratch(2 * n, k))
    assert relative_error(out, F.silu(gate_y) * up_y) < SWIGLU_ERROR


@pytest.mark.parametrize("position", [0, 1, 37, 1000])
@pytest.mark.parametrize("tokens", [1, 2, 65, 300])
def test_attention_of_any_length_is_planned_by_nobody(position, tokens, cuda_generator):
    """Against fp32; and by flash attention: a library that plans for each pair of lengths takes 120 ms over it."""
    total = position + tokens
    q = torch.randn(tokens, 12, 256, device="cuda", generator=cuda_generator).bfloat16()
    k, v = (torch.randn(64, 32, 2, 256, device="cuda", generator=cuda_generator).bfloat16() for _ in range(2))
    slots = torch.randperm(64 * 32, device="cuda", generator=cuda_generator)[:total]
    expected = attention.prefill(q.float(), k.float(), v.float(), slots, position, 1.0, 1.0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        out = attention.prefill(q, k, v, slots, position, 1.0, 1.0)
        torch.cuda.synchronize()
    assert relative_error(out, expected) < BF16_ERROR
    names = [event.name for event in profiled.events()]
    assert any("flash" in name for name in names), names
    assert not any("cudnn" in name for name in names), names


@pytest.fixture(params=[False, True], ids=["triton", "compiled"])
def _compiled_or_not(request, monkeypatch):
    from engine.ops.gdn import chunked

    monkeypatch.setattr(chunked, "COMPILED", request.param)


def gdn_inputs(tokens, generator, slots=3):
    key_heads, heads = 2, 6
    channels = (2 * key_heads + heads) * 128

    def randn(*shape):
        return torch.randn(*shape, device="cuda", generator=generator)

    rate = -torch.rand(heads, device="cuda", generator=generator) * 2
    weights = GdnWeights(
        randn(channels, 4) * 0.3, rate, randn(heads), randn(128), 1e-6, key_heads, heads, key_dim=128, value_dim=128
    )
    qkvz = randn(tokens, channels + heads * 128).bfloat16()
    ba = randn(tokens, 2 * heads).bfloat16()
    return weights, qkvz, ba, randn(slots, channels, 3).bfloat16(), randn(slots, heads, 128, 128) * 0.1


def gdn_reference(weights, qkvz, ba, conv_state, state):
    heads, width = weights.value_heads, weights.value_heads * 128
    qkv, z = qkvz[:, :-width], qkvz[:, -width:]
    return gdn.prefill(qkv, z, ba[:, :heads], ba[:, heads:], conv_state, state, 1, weights)


@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 63, 64, 65, 200])
@pytest.mark.usefixtures("_compiled_or_not", "poison")
def test_gdn_over_a_run(tokens, cuda_generator):
    from engine.ops.gdn.cuda_prefill import prefill

    weights, qkvz, ba, conv_state, state = gdn_inputs(tokens, cuda_generator)
    ours_conv, ours_state = conv_state.clone(), state.clone()
    out = torch.empty(tokens, weights.value_heads * 128, dtype=torch.bfloat16, device="cuda")
    prefill(qkvz, ba, ours_conv, ours_state, 1, weights, out, None)
    expected = gdn_reference(weights, qkvz, ba, conv_state, state)
    assert relative_error(out, expected) < GDN_ERROR
    assert torch.equal(ours_conv, conv_state)
    assert relative_error(ours_state[1], state[1]) < STATE_ERROR
    assert torch.equal(ours_state[[0, 2]], state[[0, 2]])


@pytest.mark.usefixtures("_compiled_or_not")
def test_gdn_with_equal_keys_and_no_decay(cuda_generator):
    """The hardest system: every entry of A is near 1, and a series over all 64 rows at once would lose every digit."""
    from engine.ops.gdn.cuda_prefill import prefill

    weights, qkvz, ba, conv_state, state = gdn_inputs(128, cuda_generator)
    qkvz[:] = qkvz[:1]
    ba[:, : weights.value_heads] = 9
    ba[:, weights.value_heads :] = -20
    ours_conv, ours_state = conv_state.clone(), state.clone()
    out = torch.empty(128, weights.value_heads * 128, dtype=torch.bfloat16, device="cuda")
    prefill(qkvz, ba, ours_conv, ours_state, 1, weights, out, None)
    assert relative_error(out, gdn_reference(weights, qkvz, ba, conv_state, state)) < GDN_ERROR
    assert relative_error(ours_state[1], state[1]) < 4 * STATE_ERROR


def test_gdn_quantises_for_out_proj(cuda_generator):
    from engine.ops.gdn.cuda_prefill import prefill

    weights, qkvz, ba, conv_state, state = gdn_inputs(70, cuda_generator)
    plain = torch.empty(70, weights.value_heads * 128, dtype=torch.bfloat16, device="cuda")
    coded, scale = plain.to(torch.float8_e4m3fn), torch.tensor(0.05, device="cuda")
    prefill(qkvz, ba, conv_state.clone(), state.clone(), 1, weights, plain, None)
    prefill(qkvz, ba, conv_state, state, 1, weights, coded, scale)
    expected = (plain.float() * scale.reciprocal()).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(coded.view(torch.uint8), expected.view(torch.uint8))


@pytest.fixture
def _scanned():
    from engine.ops.gdn.chunked import by_scan

    if not by_scan(torch.device("cuda")):
        pytest.skip("needs a Hopper GPU")


one = partial(padded.one, device="cuda")


@pytest.mark.parametrize(
    ("tokens", "count"),
    [(128, n) for n in (1, 2, 3, 16, 17, 63, 64, 65, 127, 128)] + [(65, 1), (1024, 64), (1024, 513), (1024, 1024)],
)
@pytest.mark.usefixtures("_scanned", "poison")
def test_gdn_over_a_padded_run_is_gdn_over_the_run(tokens, count, cuda_generator):
    """To the bit, with NaN in the padding; the other slots are what they were."""
    from engine.ops.gdn.cuda_prefill import prefill

    weights, qkvz, ba, conv_state, state = gdn_inputs(tokens, cuda_generator)
    qkvz[count:], ba[count:] = float("nan"), float("nan")
    wanted_conv, wanted_state = conv_state.clone(), state.clone()
    out, wanted = (
        torch.empty(n, weights.value_heads * 128, dtype=torch.bfloat16, device="cuda") for n in (tokens, count)
    )
    prefill(qkvz[:count], ba[:count], wanted_conv, wanted_state, 1, weights, wanted, None)
    prefill(qkvz, ba, conv_state, state, one(1, torch.int64), weights, out, None, one(count))
    assert torch.isfinite(wanted).all()
    same(out[:count], wanted)
    same(conv_state, wanted_conv)
    same(state, wanted_state)


@pytest.mark.usefixtures("_scanned")
def test_one_graph_of_gdn_for_runs_of_any_length_in_any_slot(cuda_generator):
    """Rows behind the count are live ones of a longer run before, or of one after."""
    from engine.ops.gdn.cuda_prefill import prefill

    tokens = 192
    weights, qkvz, ba, conv_state, state = gdn_inputs(tokens, cuda_generator)
    wanted_conv, wanted_state = conv_state.clone(), state.clone()
    out = torch.empty(tokens, weights.value_heads * 128, dtype=torch.bfloat16, device="cuda")
    slot, count, stream = one(0, torch.int64), one(1), torch.cuda.Stream()
    run = (weights, out, None, count)
    with torch.cuda.stream(stream):
        prefill(qkvz, ba, conv_state.clone(), state.clone(), slot, *run)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            prefill(qkvz, ba, conv_state, state, slot, *run)
    torch.cuda.synchronize()
    same(state, wanted_state)
    for number, live in ((1, 192), (0, 65), (2, 64), (1, 1), (0, 3), (1, 130)):
        slot.fill_(number), count.fill_(live)
        graph.replay()
        wanted = out.new_empty(live, out.shape[1])
        prefill(qkvz[:live], ba[:live], wanted_conv, wanted_state, number, weights, wanted, None)
        same(out[:live], wanted)
        same(conv_state, wanted_conv)
        same(state, wanted_state)


@pytest.mark.usefixtures("_scanned")
def test_triton_takes_neither_count_nor_slot(cuda_generator, monkeypatch):
    from engine.ops.gdn import chunked
    from engine.ops.gdn.cuda_prefill import prefill

    monkeypatch.setattr(chunked, "COMPILED", False)
    weights, qkvz, ba, conv_state, state = gdn_inputs(5, cuda_generator)
    out = torch.empty(5, weights.value_heads * 128, dtype=torch.bfloat16, device="cuda")
    for slot, count in ((one(1, torch.int64), None), (1, one(5))):
        with pytest.raises(ValueError, match="for Triton's kernels"):
            prefill(qkvz, ba, conv_state, state, slot, weights, out, None, count)


@pytest.mark.parametrize("kv", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
@pytest.mark.usefixtures("poison")
def test_a_row_of_padding_is_not_in_the_cache(kv, cuda_generator):
    """What lies before the caches, where a slot below 0 would be, stays as it is."""
    rows, heads, kv_heads = 300, 6, 2
    table = rope.table(rows, 64, 1e7, torch.bfloat16).cuda()
    qkv = torch.randn(rows, (2 * heads + 2 * kv_heads) * 256, device="cuda", generator=cuda_generator).bfloat16()
    scales = [torch.rand(256, device="cuda", generator=cuda_generator) + 0.5 for _ in range(2)]
    slots = torch.randperm(32 * 16, device="cuda", generator=cuda_generator)[:rows]
    slots[slots == 0] = -1  # the first has it
    slots[5::7] = -1
    slots[:2] = torch.tensor([0, -3])
    kept, positions = slots >= 0, torch.arange(rows, device="cuda")
    wanted, made = ([torch.zeros(33, 16, kv_heads, 256, device="cuda").to(kv) for _ in range(2)] for _ in range(2))
    q, padded_q = (
        qk_norm_rope(qkv[of], *scales, 1e-6, table, positions[of], slots[of], *(c[1:] for c in caches), (0.04, 0.03))
        for of, caches in ((kept, wanted), (torch.ones_like(kept), made))
    )
    same(padded_q[kept], q)
    for ours, theirs in zip(made, wanted, strict=True):
        same(ours, theirs)
        written = ours.view(torch.uint8).view(33 * 16, -1).any(1).nonzero().flatten() - 16
        assert written.tolist() == slots[kept].sort().values.tolist()


@pytest.mark.parametrize("tokens", [1, 70])
@pytest.mark.usefixtures("poison")
def test_attention_gate(tokens, cuda_generator):
    heads = 3
    out = torch.randn(tokens, heads, 256, device="cuda", generator=cuda_generator).bfloat16()
    qkv = torch.randn(tokens, (2 * heads + 2) * 256, device="cuda", generator=cuda_generator).bfloat16()
    gate = qkv[:, : 2 * heads * 256].view(tokens, heads, 512)[:, :, 256:]
    expected = (out * gate.sigmoid()).flatten(1)
    assert relative_error(attention_prefill.gate(out, qkv, None), expected) < 1e-3
    scale = torch.tensor(0.01, device="cuda")
    coded = (expected.float() * scale.reciprocal()).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    assert relative_error(attention_prefill.gate(out, qkv, scale).float(), coded) < 5e-3
