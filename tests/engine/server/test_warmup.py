"""The warm-up: inside the pool and the context, on CUDA as large as the limits, and an error in words."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from engine.batch import Batch, Sampled, StepOutput
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.errors import PreconditionError
from engine.server import loading
from engine.server.loading import load_engine, load_runner
from engine.server.warmup import warm_up


@pytest.mark.parametrize(("block_tokens", "max_model_len"), [(1, 8), (2, 8), (16, 64), (16, 4), (16, 1)])
def test_it_fits_the_blocks_and_the_context(tiny_bf16_checkpoint, block_tokens, max_model_len):
    model, limits = ModelConfig(tiny_bf16_checkpoint, device="cpu"), SchedulerConfig(max_model_len=max_model_len)
    loaded = load_runner(EngineConfig(model, CacheConfig(block_tokens, num_blocks=1), limits))
    warm_up(loaded, limits, block_tokens)


@dataclass
class Recorded:
    """A runner that keeps what it was asked."""

    max_model_len: int = 4096
    num_blocks: int = 8192
    device: torch.device = field(default_factory=lambda: torch.device("cuda"))
    batches: list[Batch] = field(default_factory=list)

    def run(self, batch: Batch) -> StepOutput:
        self.batches.append(batch)
        return StepOutput(batch.step, tuple(Sampled(s.request_id, 1) for s in batch.segments))


@pytest.mark.parametrize("max_model_len", [1, 100, 4096, 32768])
@pytest.mark.parametrize("num_blocks", [1, 7, 300, 8192])
@pytest.mark.parametrize(("max_num_seqs", "budget"), [(1, 16384), (32, 16384), (32, 33), (4, 2048)])
def test_on_cuda_the_largest_step(max_model_len, num_blocks, max_num_seqs, budget):
    runner = Recorded(max_model_len, num_blocks)
    warm_up(runner, SchedulerConfig(max_num_seqs, budget, max_model_len), 16)
    prefill, *decode = runner.batches
    assert prefill.num_tokens <= budget
    blocks = [b for s in prefill.segments for b in s.block_ids]
    assert len(set(blocks)) == len(blocks)
    assert set(blocks) <= set(range(num_blocks))
    assert [s.state_slot for s in prefill.segments] == list(range(len(prefill.segments)))
    assert len(prefill.segments) <= max_num_seqs
    for s in prefill.segments:
        assert len(s.token_ids) <= min(max_model_len, 16 * len(s.block_ids))
    reachable = min(budget, max_num_seqs * max(1, max_model_len - 1), num_blocks * 16)
    assert prefill.num_tokens >= reachable - len(prefill.segments) * 16
    assert len(decode) == (min(max_model_len, budget) > 1)


def test_too_little_memory_for_a_step_is_said_in_one_line(tiny_bf16_checkpoint, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.06 GiB")

    monkeypatch.setattr(loading, "warm_up", fail)
    config = EngineConfig(ModelConfig(tiny_bf16_checkpoint, device="cpu"), scheduler=SchedulerConfig(max_model_len=64))
    with pytest.raises(PreconditionError, match=r"a step of 16384 tokens .* lower --max-num-batched-tokens"):
        load_engine(config, {})
