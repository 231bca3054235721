"""How many experts a step reads: by hand, from a routing that is known."""

from __future__ import annotations

import pytest
import torch

from engine.batch import Segment
from engine.bench_experts import Distinct, blocks, distinct
from engine.bench_step import Family, Measured
from engine.models.fused import FusedForCausalLM
from engine.models.layers import Source
from engine.ops.linear import Budget
from engine.request import SamplingParams
from engine.runner import ModelRunner
from tests.engine.models import kernels_on_cpu
from tests.engine.models.test_fused_moe_wiring import MOE, RandomExperts
from tests.engine.models.test_fused_wiring import CONFIG, MAX_LEN, SLOTS, RandomWeights, caches

PARAMS = SamplingParams(max_tokens=4, temperature=0.0)


def runner(config, weights):
    source = Source(weights, config, torch.bfloat16, Budget(1 << 28))
    return ModelRunner(FusedForCausalLM(source, MAX_LEN, SLOTS), caches(config), config.vocab_size)


def found(runner, ids):
    runner.caches.zero_slots(torch.arange(SLOTS))  # made of NaN, with which every token chooses the same
    return distinct(runner, segments(ids))


def segments(ids):
    return [Segment(str(i), (token,), 0, (i,), i, True, True, PARAMS) for i, token in enumerate(ids)]


@pytest.fixture(scope="module")
def mixture():
    with pytest.MonkeyPatch.context() as patch:
        kernels_on_cpu.install(patch)
        yield runner(MOE, RandomExperts())


def test_one_token_chooses_its_top_k_and_the_shared_one(mixture):
    one = found(mixture, [5])
    assert one.by_layer == (4, 4)  # of three routed ones a token
    assert one.experts == 17
    first = blocks(mixture.model)[0]
    each = sum(w.units.nbytes + w.row_scale.nbytes for w in (first.gate_up_proj, first.down_proj)) // 17
    assert one.nbytes == 8 * each
    assert first.observe is None


def test_equal_tokens_choose_the_same_and_others_more(mixture):
    assert found(mixture, [5]).by_layer == found(mixture, [5, 5, 5]).by_layer == (4, 4)
    several = found(mixture, [5, 6, 7, 8])
    assert all(4 < count <= 13 for count in several.by_layer)


def test_a_dense_model_has_none(monkeypatch):
    kernels_on_cpu.install(monkeypatch)
    assert found(runner(CONFIG, RandomWeights()), [5]) is None


def test_the_table_ends_with_it():
    families = (Family("experts", 80, 640.0, 600.0, 1_000_000),)
    lines = list(Measured("decode", 700.0, families, Distinct((9, 11, 10, 10), 257, 1)).lines())
    assert lines[-1] == "experts a layer: 10.0 of 257 distinct (9 to 11), 16.00 µs each, waits included"
    assert Distinct((2,), 3, 1).line(None) == "experts a layer: 2.0 of 3 distinct (2 to 2)"
