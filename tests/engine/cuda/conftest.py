"""Checkpoints of the 27B's and the 35B's widths with four layers, runners over them, and the torch reference beside."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from engine.batch import Batch, Segment
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.models.caches import Caches
from engine.models.fused import FusedForCausalLM
from engine.models.layers import Source
from engine.models.registry import build_model
from engine.ops.linear import Budget
from engine.request import SamplingParams
from engine.runner import LoadedRunner, ModelRunner, load_runner
from engine.steps import build_step

ROOT = Path(__file__).resolve().parents[3]
BLOCKS, BLOCK_TOKENS, SLOTS, MAX_LEN = 4096, 16, 32, 2048


@pytest.fixture(scope="session")
def runner(tmp_path_factory) -> LoadedRunner:
    return load(tmp_path_factory, "27b")


@pytest.fixture(scope="session")
def reference(runner) -> ModelRunner:
    return torch_path(runner)


@pytest.fixture(scope="session")
def moe_runner(tmp_path_factory) -> LoadedRunner:
    return load(tmp_path_factory, "35b")


@pytest.fixture(scope="session")
def moe_reference(moe_runner) -> ModelRunner:
    return torch_path(moe_runner)


def load(tmp_path_factory, shape: str, *options: str) -> LoadedRunner:
    """`options` are those of tools/make_checkpoint.py."""
    folder = tmp_path_factory.mktemp("checkpoints") / f"{shape}-4-layers"
    tool = [
        sys.executable,
        str(ROOT / "tools" / "make_checkpoint.py"),
        "--shape",
        shape,
        "--layers",
        "4",
        "--seed",
        "1",
        *options,
    ]
    done = subprocess.run([*tool, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cache = CacheConfig(block_tokens=BLOCK_TOKENS, num_blocks=BLOCKS)
    limits = SchedulerConfig(max_num_seqs=SLOTS, max_model_len=MAX_LEN)
    return load_runner(EngineConfig(ModelConfig(folder, device="cuda"), cache, limits))


def torch_path(runner: LoadedRunner) -> ModelRunner:
    """The torch path on the same GPU, over caches of its own."""
    text, device = runner.weights.config, runner.device
    with torch.inference_mode():
        model = build_model(Source(runner.weights, text, torch.bfloat16, Budget(0)), MAX_LEN)
        caches = Caches(text, BLOCKS, BLOCK_TOKENS, SLOTS, torch.bfloat16, runner.kv_dtype, device)
    return ModelRunner(model, caches, text.vocab_size)


@dataclass
class Sequence:
    """One request driven by hand; the blocks of different ones are interleaved over the pool."""

    number: int
    length: int
    slot: int
    done: int = 0
    ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.number)
        self.ids = torch.randint(10, 248000, (self.length,), generator=generator).tolist()

    def segment(self, tokens: int) -> Segment:
        start, self.done = self.done, self.done + tokens
        blocks = tuple(range(self.slot, BLOCKS, SLOTS))[: -(-self.done // BLOCK_TOKENS)]
        params = SamplingParams(max_tokens=64, temperature=0.0)
        ids = tuple(self.ids[start : self.done])
        return Segment(str(self.number), ids, start, blocks, self.slot, start == 0, True, params)


@torch.inference_mode()
def last_logits(runner: ModelRunner, segments: list[Segment], *, graph: bool = False) -> torch.Tensor:
    """fp32 [segments, vocab_size] of each segment's last token; by the graph of that size, or eagerly."""
    _clear(runner, segments)
    if graph:
        assert runner.graphs is not None
        ids, logits = runner.graphs.run(segments)
        assert ids == logits.argmax(-1).tolist()
        return logits.float()
    return runner.model.logits(_hidden(runner, segments))


@torch.inference_mode()
def last_hidden(runner: ModelRunner, segments: list[Segment]) -> torch.Tensor:
    """bf16 [segments, hidden_size] of each segment's last token behind the final norm, eagerly."""
    _clear(runner, segments)
    return _hidden(runner, segments)


def _clear(runner: ModelRunner, segments: list[Segment]) -> None:
    fresh = [s.state_slot for s in segments if s.zero_state]
    if fresh:
        runner.caches.zero_slots(torch.tensor(fresh, device=runner.device))


def _hidden(runner: ModelRunner, segments: list[Segment]) -> torch.Tensor:
    fused = isinstance(runner.model, FusedForCausalLM)
    step = build_step(Batch(0, tuple(segments)), BLOCK_TOKENS, runner.device, for_kernels=fused)
    hidden = runner.model.forward(step, runner.caches)
    ends = torch.tensor([len(s.token_ids) for s in segments], device=runner.device).cumsum(0) - 1
    return hidden[ends]
