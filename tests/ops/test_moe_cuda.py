"""ops/moe on a GPU: routing against its definition, products against dequantised weights in float64."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import library
from engine.ops.moe import cuda, cuda_prefill
from engine.ops.norm import cuda as norm_cuda
from tests.ops.moe_products import (
    FEED_FORWARD_ERROR,
    ROUTES,
    SWIGLU_ERROR,
    TOP_K,
    WEIGHTED_ERROR,
    feed_forward_errors,
    normal,
    pack,
    pack_gate_up,
    stack,
    swiglu_error,
    weighted_error,
)
from tests.ops.padded import NAN, behind, by_launches, check_routing, one, same
from tests.ops.poison import relative_error
from tests.ops.test_moe_grouping import KINDS, SUBTLE, check, logits_for

pytestmark = pytest.mark.gpu

EXPERTS = 32
SIZES = [1, 2, 8, 9, 17, 32, 33, 100, 257]
WIDE_SIZES = [17, 32, 33, 64, 100, 257, 700]
PADDED = [(33, 1), (64, 2), (64, 33), (128, 3), (128, 63), (128, 64), (128, 65), (128, 128), (1024, 513), (1024, 1000)]
"""Rows, live ones."""


@pytest.fixture
def _wide(monkeypatch):
    """wide.cu, which must be the one that runs: the tests' sizes are all its own."""
    monkeypatch.setattr(cuda, "WIDE", True)
    monkeypatch.setattr(cuda, "WIDE_TOKENS", min(WIDE_SIZES))
    if library.arch_of(torch.device("cuda")) not in cuda.WIDE_ARCHS:
        pytest.skip("needs a Hopper GPU")
    assert cuda._kernel(33, 256, torch.device("cuda")) == "engine_moe_grouped_wide"


@pytest.mark.parametrize("kind", KINDS + SUBTLE)
@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 31, 32])
@pytest.mark.parametrize(("experts", "top_k"), [(256, 8), (8, 8), (33, 3)])
@pytest.mark.usefixtures("poison")
def test_routing(kind, tokens, experts, top_k):
    logits = logits_for(kind, tokens, experts, seed=tokens)
    check(cuda.routing(logits.cuda(), top_k), logits, top_k)


@pytest.mark.parametrize("kind", KINDS + SUBTLE)
@pytest.mark.parametrize("tokens", [33, 63, 64, 65, 200, 511, 512])
@pytest.mark.parametrize(("experts", "top_k"), [(256, 8), (33, 3), (8, 8)])
@pytest.mark.usefixtures("poison")
def test_routing_of_many(kind, tokens, experts, top_k):
    """Awkward ones too: ties, near ties, all tokens to the same experts, an expert that nobody chose, extremes."""
    logits = logits_for(kind, tokens, experts, seed=tokens)
    check(cuda.routing(logits.cuda(), top_k), logits, top_k)


def test_the_awkward_routings_are_what_they_are_called():
    """Of 512 tokens: every one to the same eight, every one to expert 128, none to it, the lowest of equals."""
    made = {kind: cuda.routing(logits_for(kind, 512, 256, 3).cuda(), 8) for kind in ("alike", "one", "never", "equal")}
    assert int(made["alike"].count) == 9 * 512 // cuda.MANY_PAIRS
    assert (made["one"].ids[:, 0] == 128).all()
    assert not (made["never"].ids == 128).any()
    assert (made["equal"].ids == torch.arange(8, device="cuda")).all()


@pytest.mark.parametrize("kind", KINDS + SUBTLE)
@pytest.mark.parametrize("padding", [NAN, 0.0])
@pytest.mark.parametrize(("tokens", "count"), PADDED)
@pytest.mark.usefixtures("poison")
def test_padded_routing_is_the_routing(kind, padding, tokens, count):
    logits = logits_for(kind, count, 256, seed=tokens + count).cuda()
    wanted = cuda.routing_of_many(logits, 8)
    check_routing(cuda.routing(behind(logits, tokens, padding), 8, count=one(count, device="cuda")), wanted, count)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("tokens", "count"), PADDED)
@pytest.mark.usefixtures("poison")
def test_the_norm_behind_a_padded_feed_forward(tokens, count, wide, cuda_generator, monkeypatch):
    """To the bit as without padding. 32 rows and fewer would go another way then: as with live rows in its place."""
    monkeypatch.setattr(cuda, "WIDE", wide)
    monkeypatch.setattr(cuda, "WIDE_TOKENS", 33)
    gate, up, down = (stack(EXPERTS, n, k, cuda_generator) for n, k in ((256, 512), (256, 512), (512, 256)))
    experts, logits = (pack_gate_up(gate, up), pack(down)), logits_for("random", tokens, EXPERTS, tokens).cuda()
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
    gate, up, down = (stack(EXPERTS, n, k, cuda_generator) for n, k in ((256, 512), (256, 512), (512, 256)))
    experts, logits = (pack_gate_up(gate, up), pack(down)), logits_for("random", tokens, EXPERTS, 8).cuda()
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


@pytest.mark.parametrize("count", [33, 5000, cuda_prefill.LIBRARY_TOKENS])
@pytest.mark.usefixtures("poison")
def test_a_large_padded_step_s_feed_forward(count, cuda_generator):
    """By a library, whose groups then end before its rows do."""
    tokens = cuda_prefill.LIBRARY_TOKENS
    gate, up, down = (stack(EXPERTS, n, k, cuda_generator) for n, k in ((256, 512), (256, 512), (512, 256)))
    experts, logits = (pack_gate_up(gate, up), pack(down)), logits_for("random", count, EXPERTS, 9).cuda()
    x = normal(count, 512, cuda_generator)
    wanted = cuda_prefill.feed_forward(x, *experts, cuda.routing(logits, TOP_K))
    how = cuda.routing(behind(logits, tokens, NAN), TOP_K, count=one(count, device="cuda"))
    made = cuda_prefill.feed_forward(behind(x, tokens, NAN), *experts, how)
    assert torch.isfinite(wanted).all()
    same(made[:, :count], wanted)


@pytest.mark.parametrize("kind", ROUTES)
@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize(("n", "k"), [(16, 256), (48, 512), (512, 2048)])
@pytest.mark.usefixtures("poison")
def test_swiglu(kind, tokens, n, k, cuda_generator):
    assert swiglu_error(kind, tokens, EXPERTS, n, k, cuda_generator) < SWIGLU_ERROR


@pytest.mark.parametrize("kind", ROUTES)
@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize(("n", "k"), [(16, 256), (272, 512), (2048, 512)])
@pytest.mark.usefixtures("poison")
def test_down(kind, tokens, n, k, cuda_generator):
    assert weighted_error(kind, tokens, EXPERTS, n, k, cuda_generator) < WEIGHTED_ERROR


@pytest.mark.parametrize("kind", ROUTES)
@pytest.mark.parametrize("tokens", WIDE_SIZES)
@pytest.mark.parametrize(("n", "k"), [(128, 256), (256, 768), (512, 2048)])
@pytest.mark.usefixtures("_wide", "poison")
def test_swiglu_by_warpgroup_products(kind, tokens, n, k, cuda_generator):
    assert swiglu_error(kind, tokens, EXPERTS, n, k, cuda_generator) < SWIGLU_ERROR


@pytest.mark.parametrize("kind", ROUTES)
@pytest.mark.parametrize("tokens", WIDE_SIZES)
@pytest.mark.parametrize(("n", "k"), [(256, 256), (768, 512), (2048, 512)])
@pytest.mark.usefixtures("_wide", "poison")
def test_down_by_warpgroup_products(kind, tokens, n, k, cuda_generator):
    assert weighted_error(kind, tokens, EXPERTS, n, k, cuda_generator) < WEIGHTED_ERROR


@pytest.mark.parametrize("kind", [*ROUTES, "never"])
@pytest.mark.parametrize("tokens", [cuda_prefill.LIBRARY_TOKENS, 8200])
@pytest.mark.usefixtures("poison")
def test_a_large_step_s_feed_forward(kind, tokens, cuda_generator):
    """By a library, against float64 and beside the launches it stands for: an expert without tokens, one with all."""
    ours, theirs = feed_forward_errors(kind, tokens, EXPERTS, 512, 256, cuda_generator)
    assert theirs < FEED_FORWARD_ERROR
    assert ours < FEED_FORWARD_ERROR


@pytest.mark.slow
def test_a_large_step_s_feed_forward_at_the_35b_s_widths(cuda_generator):
    ours, theirs = feed_forward_errors("random", 6147, 256, 2048, 512, cuda_generator, top_k=8)
    assert theirs < FEED_FORWARD_ERROR
    assert ours < FEED_FORWARD_ERROR


@pytest.mark.parametrize("tokens", [33, 6144])
@pytest.mark.parametrize("k", [8, 264, 2048])
@pytest.mark.usefixtures("poison")
def test_spread_and_combine(tokens, k, cuda_generator):
    """To the bit, with any order of pairs."""
    slots = 9
    positions = torch.randperm(tokens * slots, device="cuda", generator=cuda_generator).int()
    weights = torch.rand(tokens * slots, device="cuda", generator=cuda_generator)
    x, y = normal(tokens, k, cuda_generator), normal(tokens * slots, k, cuda_generator)
    by_pair, out = x.new_empty(tokens * slots, k), x.new_empty(tokens, k, dtype=torch.float32)
    library.call("engine_moe_spread", x.device, x, positions, by_pair, tokens, slots, k, 0)
    assert torch.equal(by_pair[positions.long()], x.repeat_interleave(slots, 0))
    library.call("engine_moe_combine", x.device, y, positions, weights, out, tokens, slots, k, 0)
    expected = torch.zeros(tokens, k, device="cuda")
    for slot in range(slots):
        pairs = torch.arange(slot, tokens * slots, slots, device="cuda")
        expected += y[positions[pairs].long()].float() * weights[pairs, None]
    assert torch.equal(out, expected)


def test_a_large_step_waits_for_nothing(cuda_generator):
    """Torch would say so of a copy to the host; its library product must not need one."""
    gate, up, down = (stack(EXPERTS, n, k, cuda_generator) for n, k in ((256, 512), (256, 512), (512, 256)))
    packed = pack_gate_up(gate, up), pack(down)
    x = normal(cuda_prefill.LIBRARY_TOKENS, 512, cuda_generator)
    logits = logits_for("random", len(x), EXPERTS, 7).cuda()
    expected = cuda_prefill.feed_forward(x, *packed, cuda.routing(logits, TOP_K))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        made = cuda_prefill.feed_forward(x, *packed, cuda.routing(logits, TOP_K, dependent=True))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(made, expected)


def test_an_expert_nobody_chose_is_not_read(cuda_generator):
    """NaN in it changes nothing."""
    down = stack(EXPERTS, 256, 512, cuda_generator)
    how = cuda.routing(logits_for("alike", 5, EXPERTS, 1).cuda(), TOP_K)
    x = torch.randn(5 * how.slots, 512, device="cuda", generator=cuda_generator).bfloat16()
    before = cuda.down(x, pack(down), how)
    absent = next(e for e in range(EXPERTS) if e not in how.ids[0].tolist())
    down[absent].row_scale.fill_(float("nan"))
    assert torch.equal(cuda.down(x, pack(down), how), before)


def test_a_token_does_not_depend_on_its_neighbours(cuda_generator):
    gate, up, down = (stack(EXPERTS, n, k, cuda_generator) for n, k in ((512, 2048), (512, 2048), (2048, 512)))
    gate_up, down = pack_gate_up(gate, up), pack(down)
    logits = logits_for("random", 32, EXPERTS, 5).cuda()
    x = torch.randn(32, 2048, device="cuda", generator=cuda_generator).bfloat16()

    def run(rows):
        how = cuda.routing(logits[rows].contiguous(), TOP_K)
        return cuda.down(cuda.swiglu(x[rows].contiguous(), gate_up, how), down, how)

    together = run(slice(0, 32))
    for rows in (slice(0, 1), slice(7, 9), slice(20, 32)):
        error = relative_error(run(rows), together[:, rows].double())
        assert error < 1e-2  # sums are cut elsewhere: a last bit of fp32, and of bfloat16 behind it


def test_a_norm_reads_the_weights_of_its_own_routing(cuda_generator):
    """Which is not the launch before it. Layers with other weights in the same memory, one right behind the other."""
    gate, up, down = (stack(EXPERTS, n, k, cuda_generator) for n, k in ((256, 512), (256, 512), (512, 256)))
    gate_up, down = pack_gate_up(gate, up), pack(down)
    x, scale = normal(100, 512, cuda_generator), torch.ones(512, device="cuda")

    def layer(logits, dependent):
        how = cuda.routing(logits, TOP_K, dependent=dependent)
        parts = cuda.down(cuda.swiglu(x, gate_up, how, dependent=dependent), down, how, dependent=dependent)
        return norm_cuda.add_norm(parts, x, scale, 1e-6, dependent=dependent).out

    layers = [logits_for("random", 100, EXPERTS, seed).cuda() for seed in range(4)]
    expected = [layer(logits, dependent=False) for logits in layers]
    torch.cuda.synchronize()
    made = [layer(logits, dependent=True) for _ in range(50) for logits in layers]
    for i, out in enumerate(made):
        assert torch.equal(out, expected[i % len(layers)])


def test_repeated_dependent_launches_in_a_graph_agree(cuda_generator):
    gate, up, down = (stack(EXPERTS, n, k, cuda_generator) for n, k in ((512, 2048), (512, 2048), (2048, 512)))
    gate_up, down = pack_gate_up(gate, up), pack(down)
    logits = logits_for("random", 8, EXPERTS, 6).cuda()
    x = torch.randn(8, 2048, device="cuda", generator=cuda_generator).bfloat16()

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
