"""FP8 experts on a GPU: codes to the bit, products against the codes' in float64, padding, graphs, planted errors."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from engine.ops.linear.cuda_quantize import quantize
from engine.ops.linear.quantize import quantize_per_tensor, quantize_per_token
from engine.ops.moe import cuda
from engine.ops.norm import cuda as norm_cuda
from tests.ops.fp8_experts import (
    STATIC_SCALE,
    SWIGLU_ROW_ERROR,
    down_error,
    matrix,
    pack,
    pack_gate_up,
    quantised,
    stack,
    swiglu_error,
)
from tests.ops.moe_products import ROUTES, TOP_K, WEIGHTED_ERROR, normal, planes_of
from tests.ops.padded import NAN, behind, by_launches, one, same
from tests.ops.poison import relative_error
from tests.ops.test_moe_grouping import logits_for

pytestmark = pytest.mark.gpu

EXPERTS = 32
SIZES = [1, 2, 8, 9, 17, 32, 33, 200, 1000]
PADDED = [(33, 1), (64, 33), (128, 63), (128, 65), (1024, 513), (1024, 1000)]
"""Rows, live ones."""


def rows_of(tokens: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """Of sizes far apart, one of zeros, one with a value far ahead."""
    x = torch.randn(tokens, k, device="cuda", generator=generator)
    x *= 10.0 ** (torch.arange(tokens, device="cuda")[:, None] % 7 - 3)
    x[tokens // 2] = 0
    x[tokens // 3, k // 2] = 1e5
    return x.bfloat16()


@pytest.mark.parametrize("tokens", [1, 3, 32, 33, 9000])
@pytest.mark.parametrize("k", [8, 264, 512, 2048])
@pytest.mark.parametrize("given", [None, 0.0078])
@pytest.mark.usefixtures("poison")
def test_codes_are_the_torch_path_s(tokens, k, given, cuda_generator):
    x = rows_of(tokens, k, cuda_generator)
    scale = None if given is None else torch.tensor(given, device="cuda")
    codes, scales = (made.cpu() for made in quantize(x, scale))
    if given is None:  # on a CPU: on CUDA torch divides by 448 as a product with 1/448, which may be a last bit off
        expected, by_token = quantize_per_token(x.cpu())
        assert torch.equal(scales, by_token[:, 0])
    else:
        expected = quantize_per_tensor(x.cpu(), torch.tensor(given))
        assert torch.equal(scales, torch.tensor(given).expand(tokens))
    assert torch.equal(codes.float(), expected)


@pytest.mark.parametrize("kind", [*ROUTES, "never"])
@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize(("n", "k"), [(16, 128), (48, 640), (512, 2048)])
@pytest.mark.usefixtures("poison")
def test_swiglu(kind, tokens, n, k, cuda_generator):
    assert swiglu_error(kind, tokens, EXPERTS, n, k, cuda_generator) < SWIGLU_ROW_ERROR


@pytest.mark.parametrize("kind", [*ROUTES, "never"])
@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize(("n", "k"), [(16, 128), (272, 640), (2048, 512)])
@pytest.mark.usefixtures("poison")
def test_down(kind, tokens, n, k, cuda_generator):
    assert down_error(kind, tokens, EXPERTS, n, k, cuda_generator) < WEIGHTED_ERROR


@pytest.mark.parametrize("tokens", range(1, 33))
@pytest.mark.usefixtures("poison")
def test_every_batch(tokens, cuda_generator):
    assert swiglu_error("random", tokens, EXPERTS, 256, 1024, cuda_generator) < SWIGLU_ROW_ERROR
    assert down_error("random", tokens, EXPERTS, 1024, 256, cuda_generator) < WEIGHTED_ERROR


@pytest.mark.parametrize("tokens", [1, 8, 32, 33, 200])
@pytest.mark.usefixtures("poison")
def test_with_a_static_input_scale(tokens, cuda_generator):
    sizes = ("random", tokens, EXPERTS, 256, 512, cuda_generator, STATIC_SCALE)
    assert swiglu_error(*sizes) < SWIGLU_ROW_ERROR
    assert down_error(*sizes) < WEIGHTED_ERROR


def mixture(cuda_generator, hidden=512, inter=256):
    gate, up = stack(EXPERTS, inter, hidden, cuda_generator), stack(EXPERTS, inter, hidden, cuda_generator)
    return pack_gate_up(gate, up), pack(stack(EXPERTS, hidden, inter, cuda_generator))


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 32, 1000, 16384])
def test_the_35b_s_widths(tokens, cuda_generator):
    """256 experts, 8 of them a token; at 16,384 tokens only the last ones' rows are held against float64."""
    gate, up = stack(256, 512, 2048, cuda_generator), stack(256, 512, 2048, cuda_generator)
    down = stack(256, 2048, 512, cuda_generator)
    packed = pack_gate_up(gate, up), pack(down)
    x = normal(tokens, 2048, cuda_generator)
    how = cuda.routing(logits_for("random", tokens, 256, tokens).cuda(), 8)
    inner = cuda.swiglu(x, packed[0], how)
    out = cuda.down(inner, packed[1], how)
    for t in {*range(min(tokens, 2)), tokens - 1}:
        for slot, e in enumerate((*how.ids[t].tolist(), 256)):
            pair = t * how.slots + slot
            row = quantised(x[t : t + 1], None)
            expected = torch.nn.functional.silu(row @ matrix(gate[e]).T) * (row @ matrix(up[e]).T)
            assert relative_error(inner[pair], expected[0]) < SWIGLU_ROW_ERROR
            expected = (quantised(inner[pair : pair + 1], None) @ matrix(down[e]).T)[0]
            if isinstance(out, cuda.WeightedPairs):
                assert relative_error(out.values[pair], expected) < WEIGHTED_ERROR
            else:
                assert relative_error(out[slot, t], expected * how.weights[pair].double()) < WEIGHTED_ERROR


@pytest.mark.parametrize(("tokens", "count"), PADDED)
@pytest.mark.usefixtures("poison")
def test_the_norm_behind_a_padded_feed_forward(tokens, count, cuda_generator):
    """To the bit as without padding. 32 rows and fewer would go another way then: as with live rows in its place."""
    experts, logits = mixture(cuda_generator), logits_for("random", tokens, EXPERTS, tokens).cuda()
    x, residual = normal(tokens, 512, cuda_generator), normal(tokens, 512, cuda_generator)
    scale = torch.ones(512, device="cuda")
    plain = [t[:count] for t in (x, residual, logits)] if count > cuda.MAX_ROUTED else [x, residual, logits]
    wanted = by_launches(*plain, scale, *experts)
    given = [behind(t[:count], tokens, NAN) for t in (x, residual, logits)]
    made = by_launches(*given, scale, *experts, one(count, device="cuda"))
    for name in ("residual", "out"):
        assert torch.isfinite(getattr(wanted, name)[:count]).all()
        same(getattr(made, name)[:count], getattr(wanted, name)[:count])


def test_one_graph_of_the_mixture_for_any_number_of_rows(cuda_generator):
    tokens, count, stream = 256, one(256, device="cuda"), torch.cuda.Stream()
    experts, logits = mixture(cuda_generator), logits_for("random", tokens, EXPERTS, 8).cuda()
    x, residual = normal(tokens, 512, cuda_generator), normal(tokens, 512, cuda_generator)
    scale = torch.ones(512, device="cuda")
    wanted, kept_x, kept_logits = by_launches(x, residual, logits, scale, *experts), x.clone(), logits.clone()
    with torch.cuda.stream(stream):
        by_launches(x, residual, logits, scale, *experts, count, dependent=True)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            made = [by_launches(x, residual, logits, scale, *experts, count, dependent=True) for _ in range(10)]
    for live in (256, 1, 33, 64, 65, 255, 3):
        count.fill_(live)
        logits[live:], x[live:] = NAN, NAN
        graph.replay()
        for normed in made:
            same(normed.out[:live], wanted.out[:live])
        logits[:], x[:] = kept_logits, kept_x


@pytest.mark.parametrize("tokens", [1, 8, 32])
def test_repeated_dependent_launches_in_a_graph_agree(tokens, cuda_generator):
    """As a decoding step has them: one layer's codes lie where another's lay, and each launch starts early."""
    gate_up, down = mixture(cuda_generator, 2048, 512)
    logits, x = logits_for("random", tokens, EXPERTS, 6).cuda(), normal(tokens, 2048, cuda_generator)

    def chain():
        how = cuda.routing(logits, TOP_K, dependent=True)
        return cuda.down(cuda.swiglu(x, gate_up, how, dependent=True), down, how, dependent=True)

    how = cuda.routing(logits, TOP_K)
    expected = cuda.down(cuda.swiglu(x, gate_up, how), down, how)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        chain()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            outputs = [chain() for _ in range(20)]
    graph.replay()
    torch.cuda.synchronize()
    for out in outputs:
        assert torch.equal(out, expected)


@pytest.mark.parametrize("tokens", [20, 100])
def test_layers_one_right_behind_the_other(tokens, cuda_generator):
    """With other routings in the same memory, and the norm that adds them up between."""
    gate_up, down = mixture(cuda_generator)
    x, scale = normal(tokens, 512, cuda_generator), torch.ones(512, device="cuda")

    def layer(logits, dependent):
        how = cuda.routing(logits, TOP_K, dependent=dependent)
        parts = cuda.down(cuda.swiglu(x, gate_up, how, dependent=dependent), down, how, dependent=dependent)
        return norm_cuda.add_norm(parts, x, scale, 1e-6, dependent=dependent).out

    layers = [logits_for("random", tokens, EXPERTS, seed).cuda() for seed in range(4)]
    expected = [layer(logits, dependent=False) for logits in layers]
    torch.cuda.synchronize()
    made = [layer(logits, dependent=True) for _ in range(50) for logits in layers]
    for i, out in enumerate(made):
        assert torch.equal(out, expected[i % len(layers)])


@pytest.mark.parametrize("tokens", [5, 100])
def test_nothing_waits_for_the_device(tokens, cuda_generator):
    experts, logits = mixture(cuda_generator), logits_for("random", tokens, EXPERTS, 7).cuda()
    x = normal(tokens, 512, cuda_generator)

    def run():
        how = cuda.routing(logits, TOP_K)
        return planes_of(cuda.down(cuda.swiglu(x, experts[0], how), experts[1], how), tokens)

    expected = run()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        made = run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(made, expected)


@pytest.mark.parametrize("tokens", [5, 100])
def test_an_expert_nobody_chose_is_not_read(tokens, cuda_generator):
    """NaN in its codes and its scales changes nothing."""
    down = stack(EXPERTS, 256, 512, cuda_generator)
    how = cuda.routing(logits_for("alike", tokens, EXPERTS, 1).cuda(), TOP_K)
    x = normal(tokens * how.slots, 512, cuda_generator)
    before = planes_of(cuda.down(x, pack(down), how), tokens)
    absent = next(e for e in range(EXPERTS) if e not in how.ids[0].tolist())
    down[absent].row_scale.fill_(NAN)
    down[absent].weight.view(torch.uint8).fill_(0x7F)
    assert torch.equal(planes_of(cuda.down(x, pack(down), how), tokens), before)


@pytest.mark.parametrize("tokens", [5, 100])
def test_errors_are_seen(tokens, cuda_generator):
    """The comparison is not blind: experts swapped, an expert's scale 10 % off, x by another scale than its own."""
    down = stack(EXPERTS, 256, 512, cuda_generator)
    how = cuda.routing(logits_for("random", tokens, EXPERTS, 2).cuda(), TOP_K)
    x, expert = normal(tokens * how.slots, 512, cuda_generator), int(how.ids[0, 0])
    expected = (quantised(x, None)[:1] @ matrix(down[expert]).T)[0] * how.weights[0].double()

    def error(experts):
        return relative_error(planes_of(cuda.down(x, experts, how), tokens)[0, 0], expected)

    packed, other = pack(down), (expert + 1) % EXPERTS
    assert error(packed) < WEIGHTED_ERROR
    swapped = list(down)
    swapped[expert], swapped[other] = down[other], down[expert]
    assert error(pack(swapped)) > 0.5
    scale = packed.row_scale.clone()
    scale[expert * 256 : (expert + 1) * 256] *= 1.10
    assert error(dataclasses.replace(packed, row_scale=scale)) > 20 * WEIGHTED_ERROR
    assert error(dataclasses.replace(packed, input_scale=torch.tensor(1.0, device="cuda"))) > 5 * WEIGHTED_ERROR
