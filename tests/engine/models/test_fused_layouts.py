"""Layouts beside nvidia's through the fused model, on torch stand-ins: all projections but experts' in any scheme."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from engine.graphs import DecodeGraphs
from engine.kernels import library
from engine.models.fused import FusedForCausalLM, obstacle
from engine.models.layers import Source
from engine.models.qwen3_5_moe import Qwen3_5MoeForCausalLM
from engine.ops import linear
from engine.ops.linear import Budget
from engine.ops.linear import cuda as linear_cuda
from engine.ops.linear.cuda import W4A16, W8A8, Dense, SideBySide, pack_together
from engine.ops.w4a16 import wide
from engine.prompt_graphs import PromptGraphs
from engine.runner import ModelRunner
from engine.weights.quantization import Scheme
from engine.weights.types import DenseWeight, Fp8Weight, WeightError
from tests.engine.models import kernels_on_cpu
from tests.engine.models.test_fused_moe_wiring import MOE, RandomExperts
from tests.engine.models.test_fused_wiring import (
    CONFIG,
    MAX_LEN,
    SEEN,
    SLOTS,
    PerTokenWeights,
    RandomWeights,
    Sequence,
    caches,
    error,
    make_pair,
    planted_error,
    replays,
)
from tests.engine.models.test_prompt_wiring import by_graph, padding_may_be_nan

NVFP4, BF16, STATIC, DYNAMIC = Scheme.NVFP4, Scheme.NONE, Scheme.FP8_STATIC, Scheme.FP8_DYNAMIC


def stored(default, **by_leaf):
    """The scheme of a module by the last part of its name."""

    def scheme(name):
        leaf = name.rpartition(".")[2]
        if leaf in ("in_proj_b", "in_proj_a", "gate", "shared_expert_gate"):
            return BF16
        return by_leaf.get(leaf, default)

    return staticmethod(scheme)


class OldUnsloth(RandomWeights):
    """The first snapshot of unsloth's 27B: NVFP4 but for what reads GDN's input, and lm_head."""

    scheme = stored(NVFP4, in_proj_qkv=BF16, in_proj_z=BF16, lm_head=BF16)


class Four(RandomWeights):
    """NVFP4 wherever it may be."""

    scheme = stored(NVFP4)


class Unquantised(RandomWeights):
    scheme = stored(BF16)


class Mixed(RandomWeights):
    """No two projections of one input alike, the two FP8 ones of attention apart."""

    scheme = stored(
        NVFP4, q_proj=STATIC, k_proj=NVFP4, v_proj=STATIC, in_proj_qkv=STATIC, in_proj_z=BF16, gate_proj=STATIC,
        up_proj=NVFP4, down_proj=BF16, o_proj=BF16, out_proj=NVFP4, lm_head=STATIC,
    )  # fmt: skip


class MixedAgain(RandomWeights):
    """The other pairs, and two neighbours alike."""

    scheme = stored(
        STATIC, q_proj=BF16, in_proj_qkv=NVFP4, in_proj_z=STATIC, gate_proj=BF16, up_proj=STATIC, o_proj=NVFP4,
        lm_head=NVFP4,
    )  # fmt: skip


class MixedPerToken(RandomWeights):
    """Both kinds of FP8 of one input."""

    scheme = stored(
        DYNAMIC, q_proj=STATIC, v_proj=BF16, in_proj_qkv=BF16, gate_proj=STATIC, lm_head=BF16,
    )  # fmt: skip


class UnslothExperts(RandomExperts):
    """unsloth's 35B: experts in NVFP4, attention in FP8 and in bfloat16."""

    logit_error = PerTokenWeights.logit_error

    @staticmethod
    def scheme(name):
        if "expert" in name and not name.endswith("gate"):
            return NVFP4
        return stored(BF16, q_proj=DYNAMIC, k_proj=DYNAMIC, o_proj=DYNAMIC, out_proj=DYNAMIC).__func__(name)


DENSE = (OldUnsloth, Four, Unquantised, Mixed, MixedAgain, MixedPerToken)


def exact(x, weight):
    """In fp64, then rounded to fp32: the same in every order of summation."""
    return (x.double() @ weight.double().T).float()


def exact_parts(x, weight, parts):
    made = torch.zeros(parts, x.shape[0], weight.shape[0])
    made[0] = exact(x, weight)
    return made


@pytest.fixture(scope="module")
def _kernels():
    """Sums are exact in both models. In fp32 the reference in another order of summation is as far from itself as from
    the kernels, 0.04 for Mixed and 31 tokens: nothing rounds a bfloat16 weight's sums alike.
    """
    with pytest.MonkeyPatch.context() as patch:
        kernels_on_cpu.install(patch)
        patch.setattr(kernels_on_cpu, "product", exact)
        patch.setattr(kernels_on_cpu, "partial", exact_parts)
        patch.setattr(linear, "F", SimpleNamespace(linear=lambda x, weight: exact(x, weight).to(x.dtype)))
        yield


@pytest.fixture(scope="module", params=DENSE)
def pair(request, _kernels):
    return make_pair(request.param())


@pytest.fixture(scope="module")
def mixed(_kernels):
    return make_pair(Mixed())


def of_lengths(*lengths):
    return sorted((Sequence(10 + i, n, i) for i, n in enumerate(lengths)), key=lambda s: len(s.ids) > 1)


@pytest.mark.parametrize("weights", [*DENSE, UnslothExperts])
def test_the_model_takes_them(weights):
    assert obstacle(weights(), weights.config, torch.bfloat16) is None


@pytest.mark.parametrize("lengths", [(1,), (31, 1), (33,), (100, 2, 30)], ids=str)
def test_prefill(pair, lengths):
    assert error(pair, [(s, len(s.ids)) for s in of_lengths(*lengths)]) < pair[2].logit_error


def test_prefill_from_the_units_themselves(pair, monkeypatch):
    """Of NVFP4 projections wherever they are; each is one wide product, and none is written out."""
    monkeypatch.setattr(wide, "WIDE", True)
    launched = []
    call = kernels_on_cpu.call
    monkeypatch.setattr(library, "call", lambda name, *rest: launched.append(name) or call(name, *rest))
    assert error(pair, [(s, len(s.ids)) for s in of_lengths(40, 65)]) < pair[2].logit_error
    assert "engine_w4a16_rows" not in launched
    four_bit = sum(isinstance(part, W4A16) for weight in projections(pair) for part in parts(weight))
    assert launched.count("engine_w4a16_wide") == four_bit


@pytest.mark.parametrize("tokens", [1, 40])
def test_a_scale_per_token_is_found_in_one_launch(pair, monkeypatch, tokens):
    """By a kernel, where torch's operators are ten launches and keep all rows in fp32 several times."""
    launched = []
    call = kernels_on_cpu.call
    monkeypatch.setattr(library, "call", lambda name, *rest: launched.append(name) or call(name, *rest))
    assert error(pair, [(Sequence(19, tokens, 2), tokens)]) < pair[2].logit_error
    eight_bit = [part for weight in projections(pair) for part in parts(weight) if isinstance(part, W8A8)]
    assert launched.count("engine_quantize") >= sum(part.input_scale is None for part in eight_bit)
    assert eight_bit or "engine_quantize" not in launched


def test_a_step_too_large_for_one_slice_of_swiglu(pair, monkeypatch):
    monkeypatch.setattr(linear_cuda, "SWIGLU_TOKENS", 48)
    assert error(pair, [(Sequence(18, 120, 2), 120)]) < pair[2].logit_error


def test_decode_by_graphs_and_chunks_beside_it(pair):
    sequences = [Sequence(20 + i, 3 + 9 * i, i) for i in range(5)]
    for s in sequences:
        assert error(pair, [(s, len(s.ids))]) < pair[2].logit_error
    for n in (5, 1, 3):
        assert error(pair, [(s, 1) for s in sequences[:n]]) < pair[2].logit_error
    late = Sequence(39, 41, 5)
    for chunk in (8, 33):
        assert error(pair, [*((s, 1) for s in sequences), (late, chunk)]) < pair[2].logit_error


def test_a_prompt_by_its_graph(pair):
    ours = pair[0]
    ours.prompts = PromptGraphs(ours.model, ours.caches, MAX_LEN, MAX_LEN, SLOTS, capture=replays)
    try:
        for tokens in (3, 65):
            made, _ = by_graph(pair, [(Sequence(60 + tokens, tokens, 3), tokens)])
            assert made < pair[2].logit_error
        padding_may_be_nan(ours, 65)
    finally:
        ours.prompts = None


@pytest.mark.usefixtures("_kernels")
def test_the_mixture():
    source = Source(UnslothExperts(), MOE, torch.bfloat16, Budget(1 << 28))
    ours = ModelRunner(FusedForCausalLM(source, MAX_LEN, SLOTS), caches(MOE), MOE.vocab_size)
    ours.graphs = DecodeGraphs(ours.model, ours.caches, SLOTS, MAX_LEN, capture=replays)
    pair = ours, ModelRunner(Qwen3_5MoeForCausalLM(source, MAX_LEN), caches(MOE), MOE.vocab_size), source.weights
    sequences = of_lengths(40, 2, 30)
    assert error(pair, [(s, len(s.ids)) for s in sequences]) < source.weights.logit_error
    for n in (3, 1):
        assert error(pair, [(s, 1) for s in sequences[:n]]) < source.weights.logit_error


# --- what is resident, and how it is cut -----------------------------------------------------------------------------


def parts(weight):
    return weight.parts if isinstance(weight, SideBySide) else (weight,)


def projections(pair):
    """In the order of the layers, lm_head left out."""
    for layer in pair[0].model.layers:
        mixer = getattr(layer, "self_attn", None)
        if mixer is not None:
            yield from (mixer.qkv_proj, mixer.o_proj)
        else:
            yield from (layer.linear_attn.in_proj_qkvz, layer.linear_attn.out_proj)
        yield from layer.mlp.packed


def kinds(weight):
    return [type(part) for part in parts(weight)]


def test_neighbours_alike_are_one_product(mixed):
    attention = mixed[0].model.layers[3].self_attn
    assert kinds(attention.qkv_proj) == [W8A8, W4A16, W8A8]
    assert kinds(mixed[0].model.layers[0].linear_attn.in_proj_qkvz) == [W8A8, Dense]
    assert kinds(make_pair(MixedAgain())[0].model.layers[3].self_attn.qkv_proj) == [Dense, W8A8]
    assert isinstance(make_pair(OldUnsloth())[0].model.layers[3].self_attn.qkv_proj, W4A16)


def test_bytes_are_those_that_were_shipped(pair):
    """A static scale is multiplied into the rows' and kept once for all shards."""
    names = {"mlp": ("gate_proj", "up_proj", "down_proj"), "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
             "linear_attn": ("in_proj_qkv", "in_proj_z", "out_proj")}  # fmt: skip
    shipped = 0
    for i, layer in enumerate(pair[0].model.layers):
        for owner in ("mlp", "self_attn" if hasattr(layer, "self_attn") else "linear_attn"):
            weights = [pair[2].linear(f"layers.{i}.{owner}.{leaf}") for leaf in names[owner]]
            scales = (w.input_scale for w in weights if isinstance(w, Fp8Weight) and w.input_scale is not None)
            shipped += sum(w.nbytes for w in weights) - sum(s.nbytes for s in scales)
    resident = 0
    for weight in projections(pair):
        for part in parts(weight):
            resident += part.rows.nbytes if isinstance(part, Dense) else part.units.nbytes + part.row_scale.nbytes
    assert resident == shipped


def test_one_input_scale_for_all_that_have_one():
    """The largest, as of projections that are one product; and rows keep what they were scaled by."""

    def eight(row, scale):
        return Fp8Weight(torch.zeros(16, 256).to(torch.float8_e4m3fn), torch.full((16,), row), scale)

    dense = DenseWeight(torch.zeros(16, 256, dtype=torch.bfloat16))
    made = pack_together([eight(2.0, torch.tensor(0.25)), dense, eight(4.0, None), eight(8.0, torch.tensor(0.5))])
    assert isinstance(made, SideBySide)
    assert (made.shape, float(made.input_scale), made.scratch_bytes) == ((64, 256), 0.5, 16 * 256)
    first, second, third, fourth = made.parts
    assert (first.row_scale[0], third.row_scale[0], fourth.row_scale[0]) == (1.0, 4.0, 4.0)
    assert [part.reads_rows for part in made.parts] == [False, True, True, False]
    assert second.rows is dense.weight
    alone = pack_together([eight(2.0, torch.tensor(0.25)), eight(8.0, torch.tensor(0.5))])
    assert isinstance(alone, W8A8)
    assert (alone.row_scale[0], alone.row_scale[-1], alone.reads_rows) == (1.0, 4.0, False)


def test_float16_is_not_packed():
    with pytest.raises(WeightError, match=r"found a dense weight in torch\.float16, expected NVFP4, FP8 or bfloat16"):
        pack_together([DenseWeight(torch.zeros(16, 256, dtype=torch.float16))])


@pytest.mark.usefixtures("_kernels")
def test_nvidias_layout_is_never_multiplied_by_a_library_while_it_decodes(monkeypatch):
    """Nor cut in parts: a step is the launches that it was measured with."""
    pair = make_pair(RandomWeights())
    assert all(isinstance(weight, W4A16 | W8A8) for weight in projections(pair))
    sequences = of_lengths(20, 30)
    error(pair, [(s, len(s.ids)) for s in sequences])
    launched = []
    for name in ("w4a16", "w4a16_argmax", "w4a16_partial", "w4a16_swiglu", "w8a8", "w8a8_partial"):
        inner = getattr(kernels_on_cpu, name)
        monkeypatch.setattr(
            linear_cuda, name, lambda *a, inner=inner, name=name, **k: launched.append(name) or inner(*a, **k)
        )
    monkeypatch.setattr(torch, "mm", None)
    monkeypatch.setattr(torch, "_scaled_mm", None)
    assert error(pair, [(s, 1) for s in sequences]) < pair[2].logit_error
    layer = ["w8a8", "w8a8_partial", "w4a16_swiglu", "w4a16_partial"]
    assert launched == [*layer * CONFIG.num_hidden_layers, "w4a16_argmax"]


# --- planted errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [20, 60])
def test_prompts_for_planted_errors_agree(mixed, tokens):
    assert planted_error(mixed, tokens) < SEEN / 10


def scaled(part):
    if isinstance(part, Dense):
        return dataclasses.replace(part, rows=part.rows * 1.10)
    return dataclasses.replace(part, row_scale=part.row_scale * 1.10)


@pytest.mark.parametrize(
    ("layer", "owner", "leaf", "which"),
    [
        (3, "self_attn", "qkv_proj", 0),
        (3, "self_attn", "qkv_proj", 1),
        (3, "self_attn", "qkv_proj", 2),
        (3, "self_attn", "o_proj", 0),
        (0, "linear_attn", "in_proj_qkvz", 0),
        (0, "linear_attn", "in_proj_qkvz", 1),
        (0, "linear_attn", "out_proj", 0),
        (1, "mlp", "gate_up_proj", 0),
        (1, "mlp", "gate_up_proj", 1),
        (1, "mlp", "down_proj", 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("tokens", [20, 60])
def test_a_part_ten_percent_off_is_seen(mixed, layer, owner, leaf, which, tokens, monkeypatch):
    module = getattr(mixed[0].model.layers[layer], owner)
    weight = getattr(module, leaf)
    changed = [scaled(part) if i == which else part for i, part in enumerate(parts(weight))]
    monkeypatch.setattr(module, leaf, SideBySide(tuple(changed)) if isinstance(weight, SideBySide) else changed[0])
    assert planted_error(mixed, tokens) > SEEN


@pytest.mark.parametrize("tokens", [20, 60])
def test_gate_in_the_place_of_up_is_seen(mixed, tokens, monkeypatch):
    module = mixed[0].model.layers[2].mlp
    monkeypatch.setattr(module, "gate_up_proj", SideBySide(module.gate_up_proj.parts[::-1]))
    assert planted_error(mixed, tokens) > SEEN
