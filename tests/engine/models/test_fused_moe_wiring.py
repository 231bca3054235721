"""The fused mixture of experts on torch stand-ins for its kernels against the reference model, over equal weights."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from engine.batch import Batch
from engine.census import take_census
from engine.graphs import DecodeGraphs
from engine.kernels import library
from engine.models.fused import FusedForCausalLM, obstacle
from engine.models.layers import Source
from engine.models.qwen3_5_moe import Qwen3_5MoeForCausalLM
from engine.ops.linear import Budget
from engine.ops.moe import cuda as moe_cuda
from engine.ops.moe import cuda_prefill
from engine.prompt_graphs import PromptGraphs
from engine.runner import ModelRunner
from engine.weights.quantization import Scheme
from engine.weights.types import fuse
from tests.engine.models import kernels_on_cpu
from tests.engine.models.test_fused_wiring import (
    CONFIG,
    MAX_LEN,
    SLOTS,
    RandomWeights,
    Sequence,
    caches,
    error,
    logits,
)
from tests.engine.models.test_prompt_wiring import padding_may_be_nan

MOE = CONFIG.model_copy(
    update={
        "num_hidden_layers": 2,
        "layer_types": ("linear_attention", "full_attention"),
        "num_experts": 16,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 256,
    }
)
SEEN = 1e-2
"""What a planted error must reach where both models agree better."""


class RandomExperts(RandomWeights):
    """Routers in bfloat16 with well separated rows; experts in NVFP4."""

    config = MOE
    logit_error = 3e-2

    @staticmethod
    def scheme(name):
        if name.endswith((".mlp.gate", ".shared_expert_gate")):
            return Scheme.NONE
        return RandomWeights.scheme(name)

    def stacked(self, names):
        return fuse([self.linear(name) for name in names])


@pytest.fixture(scope="module")
def pair():
    with pytest.MonkeyPatch.context() as patch:
        kernels_on_cpu.install(patch)
        source = Source(RandomExperts(), MOE, torch.bfloat16, Budget(1 << 28))
        ours = ModelRunner(FusedForCausalLM(source, MAX_LEN, SLOTS), caches(MOE), MOE.vocab_size)
        ours.graphs = DecodeGraphs(ours.model, ours.caches, SLOTS, MAX_LEN, capture=lambda work: (work(), work)[1])
        yield ours, ModelRunner(Qwen3_5MoeForCausalLM(source, MAX_LEN), caches(MOE), MOE.vocab_size), source.weights


@pytest.mark.parametrize("lengths", [(1,), (5, 2), (32,), (33,), (40, 65), (100, 2, 30)], ids=str)
def test_prefill(pair, lengths):
    sequences = sorted((Sequence(10 + i, n, i) for i, n in enumerate(lengths)), key=lambda s: len(s.ids) > 1)
    assert error(pair, [(s, len(s.ids)) for s in sequences]) < pair[2].logit_error


@pytest.mark.parametrize("lengths", [(2,), (32,), (100, 2, 30)], ids=str)
def test_experts_by_warpgroup_products(pair, lengths, monkeypatch):
    """Of few tokens, which leave planes, and of many."""
    monkeypatch.setattr(moe_cuda, "WIDE", True)
    monkeypatch.setattr(moe_cuda, "WIDE_TOKENS", 1)
    launched = []
    call = kernels_on_cpu.call
    monkeypatch.setattr(library, "call", lambda name, *rest: launched.append(name) or call(name, *rest))
    sequences = sorted((Sequence(10 + i, n, i) for i, n in enumerate(lengths)), key=lambda s: len(s.ids) > 1)
    assert error(pair, [(s, len(s.ids)) for s in sequences]) < pair[2].logit_error
    grouped = [name for name in launched if "grouped" in name]
    assert grouped == ["engine_moe_grouped_wide"] * (2 * len(pair[0].model.layers))


def test_decode_by_graphs_with_joins_and_leaves(pair):
    sequences = [Sequence(20 + i, 3 + 9 * i, i) for i in range(6)]
    for s in sequences:
        assert error(pair, [(s, len(s.ids))]) < pair[2].logit_error
    for n in (6, 1, 3, 5, 2, 6, 4):
        assert error(pair, [(s, 1) for s in sequences[:n]]) < pair[2].logit_error


@pytest.mark.parametrize("tokens", [2, 40, 120])
def test_a_prompt_by_its_graph(pair, tokens, monkeypatch):
    """Padding is routed to no expert, and the prompt's row is what it is launch by launch beside another prompt."""
    ours, routed = pair[0], []
    routing = kernels_on_cpu.moe_cuda.routing
    monkeypatch.setattr(
        kernels_on_cpu.moe_cuda, "routing", lambda *a, **k: routed.append(routing(*a, **k)) or routed[-1]
    )
    twin, sequence = (Sequence(60 + tokens, tokens, slot) for slot in (1, 3))
    expected = logits(ours, [twin.segment(tokens), Sequence(5, 90, 2).segment(90)])[0].clone()
    graphs = PromptGraphs(ours.model, ours.caches, 128, MAX_LEN, SLOTS, capture=lambda work: (work(), work)[1])
    routed.clear()
    monkeypatch.setattr(ours, "prompts", graphs, raising=False)
    output = ours.run(Batch(0, (sequence.segment(tokens),)))
    made = graphs._logits[128][0].float()
    assert output.sampled[0].token_id == int(made.argmax())
    assert float((made - expected).norm() / expected.norm()) < pair[2].logit_error / 2
    assert len(routed) == len(ours.model.layers)
    for how in routed:
        used = how.entries[: int(how.count)]
        assert int(used[:, 2].sum()) == tokens * how.slots
        assert int(how.pairs[: tokens * how.slots].max()) < tokens * how.slots


@pytest.mark.parametrize("tokens", [2, 65, 120])
def test_rows_of_padding_may_be_nan(pair, tokens, monkeypatch):
    ours = pair[0]
    graphs = PromptGraphs(ours.model, ours.caches, 128, MAX_LEN, SLOTS, capture=lambda work: (work(), work)[1])
    monkeypatch.setattr(ours, "prompts", graphs, raising=False)
    padding_may_be_nan(ours, tokens)


def test_the_router_in_a_launch_of_its_own(pair, monkeypatch):
    """What more tokens or experts than these would choose."""
    monkeypatch.setattr(kernels_on_cpu.moe_cuda, "routes_in_norm", lambda *_: False)
    routed = []
    router = kernels_on_cpu.moe_cuda.router
    monkeypatch.setattr(kernels_on_cpu.moe_cuda, "router", lambda *a, **k: routed.append(a) or router(*a, **k))
    sequences = [Sequence(50 + i, n, i) for i, n in enumerate((1, 20))]
    assert error(pair, [(s, len(s.ids)) for s in sequences]) < pair[2].logit_error
    assert error(pair, [(s, 1) for s in sequences]) < pair[2].logit_error
    assert len(routed) >= 2 * len(pair[0].model.layers)


@pytest.mark.parametrize("lengths", [(50,), (40, 65), (100, 2, 30)], ids=str)
def test_prefill_multiplied_by_a_library(pair, lengths, monkeypatch):
    monkeypatch.setattr(cuda_prefill, "LIBRARY_TOKENS", 50)
    launched = []
    call = kernels_on_cpu.call
    monkeypatch.setattr(library, "call", lambda name, *rest: launched.append(name) or call(name, *rest))
    sequences = sorted((Sequence(60 + i, n, i) for i, n in enumerate(lengths)), key=lambda s: len(s.ids) > 1)
    assert error(pair, [(s, len(s.ids)) for s in sequences]) < pair[2].logit_error
    assert launched.count("engine_moe_combine") == len(pair[0].model.layers)
    assert "engine_moe_grouped_many" not in launched


def test_a_step_below_is_not(pair, monkeypatch):
    monkeypatch.setattr(cuda_prefill, "LIBRARY_TOKENS", 50)
    monkeypatch.setattr(cuda_prefill, "feed_forward", None)
    assert error(pair, [(Sequence(70, 49, 0), 49)]) < pair[2].logit_error


@pytest.mark.parametrize("leaf", ["gate_up_proj", "down_proj"])
@pytest.mark.parametrize(("expert", "tokens"), [(0, 20), (0, 60), (7, 60), (16, 20), (16, 60)])
def test_a_scale_that_is_off_in_one_expert_is_seen(pair, leaf, expert, tokens, monkeypatch):
    module = pair[0].model.layers[1].mlp
    stack = getattr(module, leaf)
    scale = stack.row_scale.clone()
    scale[expert * stack.rows : (expert + 1) * stack.rows] *= 1.5
    before = error(pair, [(Sequence(40, tokens, 1), tokens)])
    monkeypatch.setattr(module, leaf, dataclasses.replace(stack, row_scale=scale))
    assert error(pair, [(Sequence(40, tokens, 1), tokens)]) > 3 * before + 1e-3


@pytest.mark.parametrize("tokens", [20, 60])
def test_a_router_row_out_of_place_is_seen(pair, tokens, monkeypatch):
    module = pair[0].model.layers[0].mlp
    monkeypatch.setattr(module, "router", module.router.roll(1, 0))
    assert error(pair, [(Sequence(41, tokens, 2), tokens)]) > SEEN


def test_what_is_resident_is_what_was_shipped(pair):
    model, stored = pair[0].model, pair[2]
    owners = [*(f"experts.{e}" for e in range(16)), "shared_expert"]
    for index, layer in enumerate(model.layers):
        for leaf, shards in {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.items():
            packed = getattr(layer.mlp, leaf)
            shipped = [stored.linear(f"layers.{index}.mlp.{owner}.{s}") for owner in owners for s in shards]
            assert packed.units.nbytes + packed.row_scale.nbytes == sum(w.nbytes for w in shipped)


def test_the_census_finds_every_expert_and_nothing_widened(pair):
    model, stored = pair[0].model, pair[2]
    tensors = {
        f"{name}.weight": SimpleNamespace(dtype="X", nbytes=stored.linear(name).nbytes) for name in stored.shapes
    }
    weights = SimpleNamespace(linears=stored.shapes, checkpoint=SimpleNamespace(tensors=tensors))
    census = take_census(model, weights)
    assert census.absent == ()
    assert census.widened == ()
    rows = {row.module: row for row in census.rows}
    assert rows["layers.0.mlp.gate_up_proj"].rows == 17 * 2 * 256
    assert rows["layers.1.mlp.router"].rows == 17


def test_nothing_of_it_is_refused():
    assert refused() is None


def refused(**changes):
    return obstacle(RandomExperts(), MOE.model_copy(update=changes), torch.bfloat16)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"moe_intermediate_size": 128}, "moe_intermediate_size = 128"),
        ({"shared_expert_intermediate_size": 512}, "shared_expert_intermediate_size = 512"),
        ({"num_experts": 257}, "num_experts = 257"),
        ({"num_experts_per_tok": 16}, "num_experts_per_tok = 16"),
    ],
)
def test_sizes_that_the_kernels_do_not_take(changes, said):
    assert refused(**changes) == said
