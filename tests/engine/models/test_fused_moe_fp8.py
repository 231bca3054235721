"""Experts in FP8 through the fused mixture, on torch stand-ins: as unsloth's 35B has its late layers, and others."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
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
from engine.ops.moe import cuda_prefill
from engine.ops.moe.fp8 import Fp8Experts
from engine.prompt_graphs import PromptGraphs
from engine.runner import ModelRunner
from engine.weights.quantization import Scheme
from engine.weights.types import Fp8Weight
from tests.engine.models import kernels_on_cpu
from tests.engine.models.test_fused_layouts import exact, exact_parts
from tests.engine.models.test_fused_moe_wiring import MOE, RandomExperts
from tests.engine.models.test_fused_wiring import MAX_LEN, SLOTS, Sequence, caches, error
from tests.engine.models.test_prompt_wiring import padding_may_be_nan

EXPERTS = 17
"""The shared one among them."""


def experts_in(found, **by_leaf):
    """Of layer 1; what else there is as RandomExperts has it."""

    def scheme(name):
        if name.startswith("layers.1.mlp.") and not name.endswith("gate"):
            return by_leaf.get(name.rpartition(".")[2], found)
        return RandomExperts.scheme(name)

    return staticmethod(scheme)


class LateLayers(RandomExperts):
    """unsloth's: FP8 with a scale per token behind NVFP4."""

    scheme = experts_in(Scheme.FP8_DYNAMIC)


class Static(RandomExperts):
    scheme = experts_in(Scheme.FP8_STATIC)


class DownAlone(RandomExperts):
    """Each projection is a product of its own."""

    scheme = experts_in(Scheme.NVFP4, down_proj=Scheme.FP8_DYNAMIC)


def make_pair(weights):
    source = Source(weights, MOE, torch.bfloat16, Budget(1 << 28))
    ours = ModelRunner(FusedForCausalLM(source, MAX_LEN, SLOTS), caches(MOE), MOE.vocab_size)
    ours.graphs = DecodeGraphs(ours.model, ours.caches, SLOTS, MAX_LEN, capture=lambda work: (work(), work)[1])
    return ours, ModelRunner(Qwen3_5MoeForCausalLM(source, MAX_LEN), caches(MOE), MOE.vocab_size), weights


@pytest.fixture(scope="module")
def _kernels():
    """Sums are exact in both models (test_fused_layouts.py): in fp32 a code of an expert's input goes to another step
    here and there, 0.04 of a row of logits.
    """
    with pytest.MonkeyPatch.context() as patch:
        kernels_on_cpu.install(patch)
        patch.setattr(kernels_on_cpu, "product", exact)
        patch.setattr(kernels_on_cpu, "partial", exact_parts)
        patch.setattr(linear, "F", SimpleNamespace(linear=lambda x, weight: exact(x, weight).to(x.dtype)))
        yield


@pytest.fixture(scope="module", params=[LateLayers, Static, DownAlone])
def pair(request, _kernels):
    return make_pair(request.param())


@pytest.fixture(scope="module")
def late(_kernels):
    return make_pair(LateLayers())


def of_lengths(*lengths):
    return sorted((Sequence(10 + i, n, i) for i, n in enumerate(lengths)), key=lambda s: len(s.ids) > 1)


@pytest.mark.parametrize("lengths", [(1,), (5, 2), (32,), (33,), (40, 65), (100, 2, 30)], ids=str)
def test_prefill(pair, lengths):
    assert error(pair, [(s, len(s.ids)) for s in of_lengths(*lengths)]) < pair[2].logit_error


def test_decode_by_graphs_with_joins_and_leaves(pair):
    sequences = [Sequence(20 + i, 3 + 9 * i, i) for i in range(6)]
    for s in sequences:
        assert error(pair, [(s, len(s.ids))]) < pair[2].logit_error
    for n in (6, 1, 3, 5):
        assert error(pair, [(s, 1) for s in sequences[:n]]) < pair[2].logit_error


@pytest.mark.parametrize("tokens", [2, 65, 120])
def test_rows_of_padding_may_be_nan(pair, tokens, monkeypatch):
    ours = pair[0]
    graphs = PromptGraphs(ours.model, ours.caches, 128, MAX_LEN, SLOTS, capture=lambda work: (work(), work)[1])
    monkeypatch.setattr(ours, "prompts", graphs, raising=False)
    padding_may_be_nan(ours, tokens)


def test_a_large_step_is_multiplied_by_the_kernels_too(late, monkeypatch):
    """The NVFP4 layer's by a library. Each of the FP8 layer's products behind a launch that makes codes."""
    monkeypatch.setattr(cuda_prefill, "LIBRARY_TOKENS", 50)
    launched = []
    call = kernels_on_cpu.call
    monkeypatch.setattr(library, "call", lambda name, *rest: launched.append(name) or call(name, *rest))
    assert error(late, [(Sequence(60, 80, 0), 80)]) < late[2].logit_error
    moe = [name.removeprefix("engine_moe_") for name in launched if name.startswith("engine_moe_")]
    assert moe == ["route_many", "spread", "combine", "route_many", "grouped_many_fp8", "grouped_many_fp8"]
    before = [one for one, after in pairwise(launched) if after == "engine_moe_grouped_many_fp8"]
    assert before == ["engine_quantize"] * 2


@pytest.mark.parametrize("leaf", ["gate_up_proj", "down_proj"])
@pytest.mark.parametrize(("expert", "tokens"), [(0, 20), (7, 60), (16, 20), (16, 60)])
def test_a_scale_ten_percent_off_in_one_expert_is_seen(late, leaf, expert, tokens, monkeypatch):
    module = late[0].model.layers[1].mlp
    stack = getattr(module, leaf)
    assert isinstance(stack, Fp8Experts)
    scale = stack.row_scale.clone()
    scale[expert * stack.rows : (expert + 1) * stack.rows] *= 1.10
    before = planted(late, tokens)
    monkeypatch.setattr(module, leaf, dataclasses.replace(stack, row_scale=scale))
    assert planted(late, tokens) > 3 * before + 1e-3


def planted(pair, tokens):
    return error(pair, [(Sequence(40, tokens, 1), tokens)])


# --- what is resident, and what is refused ---------------------------------------------------------------------------


def test_what_is_resident_is_what_was_shipped(pair):
    """A static scale is kept once for all experts."""
    model, stored = pair[0].model, pair[2]
    owners = [*(f"experts.{e}" for e in range(EXPERTS - 1)), "shared_expert"]
    for leaf, shards in {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.items():
        packed = getattr(model.layers[1].mlp, leaf)
        weights = [stored.linear(f"layers.1.mlp.{owner}.{s}") for owner in owners for s in shards]
        scales = sum(w.input_scale is not None for w in weights if isinstance(w, Fp8Weight)) * 4
        assert packed.units.nbytes + packed.row_scale.nbytes == sum(w.nbytes for w in weights) - scales


@pytest.mark.parametrize("weights", [LateLayers, Static, DownAlone])
def test_nothing_of_it_is_refused(weights):
    assert obstacle(weights(), MOE, torch.bfloat16) is None


@pytest.mark.parametrize(
    ("module", "scheme", "said"),
    [
        (
            "layers.1.mlp.shared_expert.up_proj",
            Scheme.NVFP4,
            "NVFP4 (FP8_DYNAMIC, as layers.1.mlp.experts.0.gate_proj, is)",
        ),
        (
            "layers.1.mlp.shared_expert.down_proj",
            Scheme.FP8_STATIC,
            "FP8_STATIC (FP8_DYNAMIC, as layers.1.mlp.experts.0.down_proj, is)",
        ),
        (
            "layers.1.mlp.shared_expert.down_proj",
            Scheme.NONE,
            "NONE (NVFP4 or NVFP4_PACKED or FP8_STATIC or FP8_DYNAMIC is)",
        ),
        (
            "layers.0.mlp.experts.3.up_proj",
            Scheme.FP8_DYNAMIC,
            "FP8_DYNAMIC (NVFP4, as layers.0.mlp.experts.0.gate_proj, is)",
        ),
    ],
)
def test_an_expert_in_another_scheme_than_its_layer_s_is_refused_by_name(module, scheme, said):
    weights = LateLayers()
    weights.schemes[module] = scheme
    assert obstacle(weights, MOE, torch.bfloat16) == f"{module} in {said}"
