"""The fused model on torch stand-ins for its kernels against the reference model, over the same random weights."""

from __future__ import annotations

import dataclasses
import weakref
from types import SimpleNamespace

import pytest
import torch

from engine.batch import Batch, Segment
from engine.graphs import DecodeGraphs
from engine.kernels import library
from engine.models import fused_layers
from engine.models.caches import Caches
from engine.models.config import TextConfig
from engine.models.fused import FusedForCausalLM, obstacle
from engine.models.layers import Source
from engine.models.qwen3_5 import Qwen3_5ForCausalLM
from engine.ops.linear import Budget
from engine.ops.linear import cuda as linear_cuda
from engine.ops.linear.cuda import W4A16
from engine.ops.w4a16 import wide
from engine.request import SamplingParams
from engine.runner import ModelRunner
from engine.weights.quantization import Scheme
from engine.weights.specs import linear_shapes, plain_shapes
from engine.weights.types import DenseWeight, Fp8Weight, Nvfp4Weight
from tests.engine.models import kernels_on_cpu

CONFIG = TextConfig(
    vocab_size=512,
    hidden_size=256,
    num_hidden_layers=4,
    layer_types=("linear_attention", "linear_attention", "linear_attention", "full_attention"),
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=256,
    rope_theta=1e7,
    partial_rotary_factor=0.25,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    intermediate_size=512,
)
BLOCKS, BLOCK_TOKENS, SLOTS, MAX_LEN = 96, 8, 6, 256
CPU = torch.device("cpu")
SEEN = 1e-2
"""What a planted error must reach on a prompt for which both models agree ten times better."""
GREEDY = SamplingParams(max_tokens=64, temperature=0.0)


class RandomWeights:
    """nvidia's mixed precision in memory. Row scales are powers of two, so that bfloat16 holds a weight exactly and
    both models multiply by the same numbers.
    """

    device = CPU
    config = CONFIG
    logit_error = 2e-2
    """Of a row: 0 to 1.6e-2 is seen, from sums in another order that E4M3 turns into whole steps here and there."""

    def __init__(self):
        self.shapes, self.plain = linear_shapes(self.config), plain_shapes(self.config)
        self.linears = self.shapes
        self.seeds = {name: seed for seed, name in enumerate(sorted([*self.shapes, *self.plain]))}
        self.schemes = {name: self.scheme(name) for name in self.shapes}
        stored = {f"{name}.weight": SimpleNamespace(dtype="BF16") for name in self.shapes}
        self.checkpoint = SimpleNamespace(tensors=stored)

    @staticmethod
    def scheme(name):
        if ".mlp." in name or name == "lm_head":
            return Scheme.NVFP4
        return Scheme.NONE if name.endswith(("in_proj_b", "in_proj_a")) else Scheme.FP8_STATIC

    def generator(self, name):
        return torch.Generator().manual_seed(self.seeds[name])

    def linear(self, name):
        n, k = self.shapes[name]
        g = self.generator(name)
        match self.schemes[name]:
            case Scheme.NVFP4:
                packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=g)
                blocks = (torch.rand(n, k // 16, generator=g) + 0.5).to(torch.float8_e4m3fn)
                return Nvfp4Weight(packed, blocks, torch.full((n,), 2.0**-6))
            case Scheme.NONE:
                return DenseWeight((torch.randn(n, k, generator=g) * 0.1).bfloat16())
        weight = (torch.randn(n, k, generator=g) * 64).clamp(-448, 448).to(torch.float8_e4m3fn)
        # Shards differ, so that a scale that went to the wrong rows shows.
        scale = 2.0**-10 * (1 + len(name) % 3)
        static = self.schemes[name] is Scheme.FP8_STATIC
        return Fp8Weight(weight, torch.full((n,), scale), torch.tensor(0.03125) if static else None)

    def tensor(self, name):
        values = torch.randn(self.plain[name], generator=self.generator(name)) * 0.3
        plain_norm = name.endswith("linear_attn.norm.weight")
        return (values + 1 if plain_norm else values).bfloat16()

    def scalar(self, _name, default):
        return default


class PerTokenWeights(RandomWeights):
    """unsloth's: towers, lm_head and the last layer's MLP in FP8 whose inputs have a scale per token."""

    logit_error = 0.15
    """Token scales that are 1e-7 off change the reference's own logits by 0.06 to 0.09: nothing here is exact."""

    @staticmethod
    def scheme(name):
        if name == "lm_head" or name.startswith("layers.3.mlp"):
            return Scheme.FP8_DYNAMIC
        found = RandomWeights.scheme(name)
        return Scheme.FP8_DYNAMIC if found is Scheme.FP8_STATIC else found


def caches(config=CONFIG):
    made = Caches(config, BLOCKS, BLOCK_TOKENS, SLOTS, torch.bfloat16, torch.float8_e4m3fn, CPU)
    for poisoned in (made.kv.view(torch.uint8), made.conv, made.recurrent):
        poisoned.fill_(0x7F if poisoned.dtype == torch.uint8 else float("nan"))
    return made


@pytest.fixture(scope="module")
def _kernels():
    with pytest.MonkeyPatch.context() as patch:
        kernels_on_cpu.install(patch)
        yield


@pytest.fixture(scope="module")
def static_pair(_kernels):
    return make_pair(RandomWeights())


@pytest.fixture(scope="module", params=[RandomWeights, PerTokenWeights])
def pair(request, _kernels):
    return make_pair(request.param())


def make_pair(weights):
    """(fused runner with graphs, reference runner, their weights), each over caches of its own."""
    source = Source(weights, CONFIG, torch.bfloat16, Budget(1 << 28))
    ours = ModelRunner(FusedForCausalLM(source, MAX_LEN, SLOTS), caches(), CONFIG.vocab_size)
    ours.graphs = DecodeGraphs(ours.model, ours.caches, SLOTS, MAX_LEN, capture=replays)
    return ours, ModelRunner(Qwen3_5ForCausalLM(source, MAX_LEN), caches(), CONFIG.vocab_size), source.weights


def replays(work):
    work()
    return work


class Sequence:
    def __init__(self, number, length, slot):
        self.number, self.slot, self.done = number, slot, 0
        self.ids = torch.randint(0, 512, (length,), generator=torch.Generator().manual_seed(number)).tolist()

    def segment(self, tokens):
        start, self.done = self.done, self.done + tokens
        blocks = tuple(range(self.slot, BLOCKS, SLOTS))[: -(-self.done // BLOCK_TOKENS)]
        ids = tuple(self.ids[start : self.done])
        return Segment(str(self.number), ids, start, blocks, self.slot, start == 0, True, GREEDY)


def logits(runner, segments):
    """One step; fp32 logits of each segment's last token, from the graph where it took the step."""
    kept = []
    inner = runner.model.logits
    runner.model.logits = lambda hidden: kept.append(inner(hidden)) or kept[-1].clone()
    batch = Batch(0, tuple(segments))
    try:
        output = runner.run(batch)
    finally:
        del runner.model.logits
    if not kept:
        assert runner.graphs is not None
        kept.append(runner.graphs._logits[len(segments)].float())
    assert [s.token_id for s in output.sampled] == kept[0].argmax(-1).tolist()
    return kept[0]


def error(pair, parts):
    """Largest relative error of a row; the reference's choice continues each finished sequence in both."""
    ours, reference, _ = pair
    segments = [s.segment(n) for s, n in parts]
    expected, made = logits(reference, segments), logits(ours, segments)
    for (sequence, _), token in zip(parts, expected.argmax(-1).tolist(), strict=True):
        if sequence.done == len(sequence.ids):
            sequence.ids.append(token)
    assert torch.isfinite(made).all()
    return float(((made - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


@pytest.mark.parametrize("weights", [RandomWeights, PerTokenWeights])
def test_the_kernels_take_this_model(weights):
    assert obstacle(weights(), CONFIG, torch.bfloat16) is None


@pytest.mark.parametrize("lengths", [(1,), (2,), (31, 1), (33,), (40, 65), (100, 2, 30)], ids=str)
def test_prefill(pair, lengths):
    sequences = sorted((Sequence(10 + i, n, i) for i, n in enumerate(lengths)), key=lambda s: len(s.ids) > 1)
    assert error(pair, [(s, len(s.ids)) for s in sequences]) < pair[2].logit_error


@pytest.mark.parametrize("lengths", [(33,), (40, 65), (100, 2, 30)], ids=str)
def test_prefill_from_the_units_themselves(pair, lengths, monkeypatch):
    """No NVFP4 weight is written out where a wide product takes it."""
    monkeypatch.setattr(wide, "WIDE", True)
    launched = []
    call = kernels_on_cpu.call
    monkeypatch.setattr(library, "call", lambda name, *rest: launched.append(name) or call(name, *rest))
    sequences = sorted((Sequence(10 + i, n, i) for i, n in enumerate(lengths)), key=lambda s: len(s.ids) > 1)
    assert error(pair, [(s, len(s.ids)) for s in sequences]) < pair[2].logit_error
    four_bit = sum(isinstance(weight, W4A16) for layer in pair[0].model.layers for weight in layer.mlp.packed)
    assert launched.count("engine_w4a16_wide") == four_bit
    assert "engine_w4a16_rows" not in launched


def test_a_step_too_large_for_one_slice_of_swiglu(pair, monkeypatch):
    monkeypatch.setattr(linear_cuda, "SWIGLU_TOKENS", 48)
    assert error(pair, [(Sequence(18, 120, 2), 120)]) < pair[2].logit_error


def test_what_a_norm_is_done_with_is_let_go(pair, monkeypatch):
    """A step of many tokens would hold the parts once more in every caller above the layer that runs."""
    left = []

    def keeping(make):
        def made(*arguments):
            out = make(*arguments)
            left.append(weakref.ref(out))
            return out

        return made

    def alone(run):
        def checked(*arguments):
            assert [one for one in left if one() is not None] == []
            return run(*arguments)

        return checked

    monkeypatch.setattr(fused_layers, "planes", keeping(fused_layers.planes))
    for name in ("swiglu", "project"):
        monkeypatch.setattr(fused_layers, name, alone(getattr(fused_layers, name)))
    error(pair, [(Sequence(19, 60, 2), 60)])
    assert len(left) == 2 * CONFIG.num_hidden_layers


def test_decode_by_graphs_with_joins_and_leaves(pair):
    sequences = [Sequence(20 + i, 3 + 9 * i, i) for i in range(6)]
    for s in sequences:
        assert error(pair, [(s, len(s.ids))]) < pair[2].logit_error
    for n in (6, 1, 3, 5, 2, 6, 4):
        assert error(pair, [(s, 1) for s in sequences[:n]]) < pair[2].logit_error


def test_decode_by_graphs_of_wide_products():
    """As from wide.FROM_TOKENS sequences on: no NVFP4 product is streamed then, lm_head's neither."""
    with pytest.MonkeyPatch.context() as patch:
        kernels_on_cpu.install(patch)
        patch.setattr(wide, "WIDE", True)
        patch.setattr(wide, "FROM_TOKENS", 1)
        for streamed in ("w4a16", "w4a16_argmax", "w4a16_partial", "w4a16_swiglu"):
            patch.setattr(linear_cuda, streamed, None)
        pair = make_pair(RandomWeights())
        sequences = [Sequence(20 + i, 3 + 9 * i, i) for i in range(6)]
        for s in sequences:
            assert error(pair, [(s, len(s.ids))]) < pair[2].logit_error
        for n in (6, 1, 4):
            assert error(pair, [(s, 1) for s in sequences[:n]]) < pair[2].logit_error


def test_chunks_beside_decodes(pair):
    """Few rows and many, with and without runs, decodes first."""
    running = [Sequence(30 + i, 12 + i, i) for i in range(3)]
    for s in running:
        assert error(pair, [(s, len(s.ids))]) < pair[2].logit_error
    late = Sequence(39, 120, 4)
    for chunk in (8, 50, 1, 29, 32):
        assert error(pair, [*((s, 1) for s in running), (late, chunk)]) < pair[2].logit_error
    assert error(pair, [(s, 1) for s in (*running, late)]) < pair[2].logit_error


PLANTED = [
    (1, "linear_attn", "in_proj_qkvz"),
    (0, "linear_attn", "out_proj"),
    (3, "self_attn", "qkv_proj"),
    (3, "self_attn", "o_proj"),
    (2, "mlp", "gate_up_proj"),
    (2, "mlp", "down_proj"),
]


def planted_error(pair, tokens):
    """Of a prompt on which nothing else differs."""
    return error(pair, [(Sequence(40, tokens, 1), tokens)])


@pytest.mark.parametrize("tokens", [20, 60])
def test_prompts_for_planted_errors_agree(static_pair, tokens):
    assert planted_error(static_pair, tokens) < SEEN / 10


@pytest.mark.parametrize(("layer", "owner", "leaf"), PLANTED, ids=str)
@pytest.mark.parametrize("tokens", [20, 60])
def test_a_scale_ten_percent_off_is_seen(static_pair, layer, owner, leaf, tokens, monkeypatch):
    module = getattr(static_pair[0].model.layers[layer], owner)
    weight = getattr(module, leaf)
    monkeypatch.setattr(module, leaf, dataclasses.replace(weight, row_scale=weight.row_scale * 1.10))
    assert planted_error(static_pair, tokens) > SEEN


@pytest.mark.parametrize("tokens", [20, 60])
def test_swapped_key_heads_are_seen(static_pair, tokens, monkeypatch):
    module = static_pair[0].model.layers[0].linear_attn
    units = module.in_proj_qkvz.units.clone()
    heads = 128 // 16  # tiles; two heads of queries, then two of keys
    first, second = slice(2 * heads, 3 * heads), slice(3 * heads, 4 * heads)
    units[first], units[second] = module.in_proj_qkvz.units[second], module.in_proj_qkvz.units[first]
    monkeypatch.setattr(module, "in_proj_qkvz", dataclasses.replace(module.in_proj_qkvz, units=units))
    assert planted_error(static_pair, tokens) > SEEN


@pytest.mark.parametrize("tokens", [20, 60])
def test_dropped_block_scales_are_seen(static_pair, tokens, monkeypatch):
    """One column of blocks of one matrix: 1/16 of its block scales are 0."""
    module = static_pair[0].model.layers[1].mlp
    units = module.down_proj.units.clone()
    units[:, 0, 2048::16] = units[:, 0, 2049::16] = 0
    monkeypatch.setattr(module, "down_proj", dataclasses.replace(module.down_proj, units=units))
    assert planted_error(static_pair, tokens) > SEEN


def test_what_is_resident_is_what_was_shipped(pair):
    model, stored = pair[0].model, pair[2]
    for index, layer in enumerate(model.layers):
        names = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
        for leaf, shards in names.items():
            packed = getattr(layer.mlp, leaf)
            shipped = [stored.linear(f"layers.{index}.mlp.{s}") for s in shards]
            assert packed.units.nbytes + packed.row_scale.nbytes == sum(w.nbytes for w in shipped)
