"""Layouts beside nvidia's on one GPU against the torch reference: BF16 by a library, NVFP4 towers, parts in a row."""

from __future__ import annotations

import dataclasses
import shutil

import pytest
import torch

from engine.ops.linear.cuda import W8A8, Dense, SideBySide
from tests.engine.cuda.conftest import Sequence, last_logits, load, torch_path
from tests.engine.cuda.test_fused_model import LOGIT_ERROR

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

PER_TOKEN_ERROR = 6e-2
"""Of a row of logits where inputs have a scale per token: twice what two right engines differ by with such inputs
(tools/synthetic_weights.py)."""
LAYOUTS = {
    "older-unsloth": (LOGIT_ERROR, ("--layout", "compressed-tensors-nvfp4", "--w4a4")),
    "mixed": (
        LOGIT_ERROR,
        ("--store", "q_proj|in_proj_z|up_proj=bf16", "--store", "v_proj|out_proj=nvfp4", "--store", "lm_head=fp8"),
    ),
    "unsloth": (PER_TOKEN_ERROR, ("--layout", "compressed-tensors", "--store", "q_proj|in_proj_qkv=bf16")),
}
EXPERTS = (
    *("--layout", "compressed-tensors"),
    *("--store", r"\.mlp\.=nvfp4", "--store", "linear_attn|lm_head=bf16", "--store", "v_proj=bf16"),
)
"""unsloth's 35B: experts in NVFP4, attention in FP8 and BF16."""


@pytest.fixture(scope="module", params=LAYOUTS)
def pair(request, tmp_path_factory):
    """(runner over the kernels, the torch path, what a row of logits may differ by)."""
    bound, options = LAYOUTS[request.param]
    runner = load(tmp_path_factory, "27b", *options)
    yield runner, torch_path(runner), bound
    shutil.rmtree(runner.weights.checkpoint.path)


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    runner = load(tmp_path_factory, "35b", *EXPERTS)
    yield runner, torch_path(runner), PER_TOKEN_ERROR
    shutil.rmtree(runner.weights.checkpoint.path)


def errors(pair, segments, *, graph=False):
    """(of each row, the reference's ids)."""
    expected = last_logits(pair[1], segments)
    made = last_logits(pair[0], segments, graph=graph)
    assert torch.isfinite(made).all()
    error = (made - expected).norm(dim=-1) / expected.norm(dim=-1)
    print(f"{len(segments)} rows, error {float(error.median()):.2e}, at most {float(error.max()):.2e}")
    return error, expected.argmax(-1).tolist()


def step(pair, parts, *, graph=False):
    error, ids = errors(pair, [s.segment(n) for s, n in parts], graph=graph)
    assert float(error.max()) < pair[2]
    for (sequence, _), token in zip(parts, ids, strict=True):
        if sequence.done == len(sequence.ids):
            sequence.ids.append(token)


@pytest.mark.parametrize("lengths", [(1,), (31, 1), (33,), (64, 65), (300, 2, 130)], ids=str)
def test_prefill(pair, lengths):
    sequences = [Sequence(100 + i, n, i) for i, n in enumerate(lengths)]
    step(pair, [(s, s.length) for s in sorted(sequences, key=lambda s: s.length > 1)])


def test_decode_by_graph_and_chunks_beside_it(pair):
    sequences = [Sequence(200 + i, 1 + 37 * i % 200, i) for i in range(32)]
    for s in sequences:
        step(pair, [(s, s.length)])
    for n in (32, 1, 17, 2, 9):
        step(pair, [(s, 1) for s in sequences[:n]], graph=True)
    late = Sequence(240, 133, 31)
    for chunk in (33, 100):
        step(pair, [*((s, 1) for s in sequences[:3]), (late, chunk)])


def test_the_mixture(experts):
    """Where the two choose another expert a row is far off, so most rows must be near."""
    sequences = [Sequence(300 + i, 1 + 6 * i, i) for i in range(16)]
    error, ids = errors(experts, [s.segment(s.length) for s in sequences])
    assert float(error.median()) < experts[2]
    for s, token in zip(sequences, ids, strict=True):
        s.ids.append(token)
    for n in (16, 1, 5):
        error, ids = errors(experts, [s.segment(1) for s in sequences[:n]], graph=True)
        assert float(error.median()) < experts[2]
        for s, token in zip(sequences[:n], ids, strict=True):
            s.ids.append(token)


@pytest.mark.parametrize("which", ["pair", "experts"])
def test_by_the_kernels_and_nothing_widened(which, request):
    runner = request.getfixturevalue(which)[0]
    census = runner.census()
    assert (census.widened, census.absent, runner.info()["reference_ops"]) == ((), (), [])


def test_a_replay_allocates_nothing(pair):
    runner = pair[0]
    sequence = Sequence(330, 20, 4)
    last_logits(runner, [sequence.segment(20)])
    sequence.ids += [11] * 20
    runner.graphs.run([sequence.segment(1)])
    before = torch.cuda.memory_stats()
    for _ in range(10):
        runner.graphs.run([sequence.segment(1)])
    after = torch.cuda.memory_stats()
    key = "allocation.all.allocated"
    assert after[key] == before[key]


def scaled(weight):
    if isinstance(weight, SideBySide):
        return SideBySide((*weight.parts[:-1], scaled(weight.parts[-1])))
    if isinstance(weight, Dense):
        return Dense(weight.rows * 1.10)
    return dataclasses.replace(weight, row_scale=weight.row_scale * 1.10)


@pytest.mark.parametrize("module", ["linear_attn.in_proj_qkvz", "linear_attn.out_proj", "mlp.gate_up_proj"])
def test_an_error_in_one_part_is_seen(pair, module, monkeypatch):
    """Eagerly: a graph holds what it was captured with. With a scale per token the bound is too wide for it."""
    owner_name, leaf = module.split(".")
    owner = getattr(pair[0].model.layers[1], owner_name)
    weight = getattr(owner, leaf)
    if any(isinstance(p, W8A8) and p.reads_rows for p in getattr(weight, "parts", (weight,))):
        pytest.skip("a scale per token")
    monkeypatch.setattr(owner, leaf, scaled(weight))
    error, _ = errors(pair, [Sequence(400, 40, 3).segment(40)])
    assert float(error.max()) > LOGIT_ERROR
