"""The warm-up: inside the pool and the context, on CUDA as large as the limits in every way, and an error in words."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from types import SimpleNamespace

import pytest
import torch

from engine.batch import Batch, Sampled, StepOutput
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.errors import PreconditionError
from engine.models import fused_layers
from engine.models.side_streams import WORTH_IT
from engine.request import SamplingParams
from engine.server import loading, warmup
from engine.server.loading import load_engine, load_runner
from engine.server.warmup import warm_up


@pytest.mark.parametrize(("block_tokens", "max_model_len"), [(1, 8), (2, 8), (16, 64), (16, 4), (16, 1), (256, 256)])
def test_it_fits_the_blocks_and_the_context(tiny_bf16_checkpoint, block_tokens, max_model_len):
    model, limits = ModelConfig(tiny_bf16_checkpoint, device="cpu"), SchedulerConfig(max_model_len=max_model_len)
    loaded = load_runner(EngineConfig(model, CacheConfig(block_tokens, num_blocks=1), limits))
    warm_up(loaded, limits, block_tokens)
    assert loaded.prompt_logprobs._last == {}


@dataclass
class Recorded:
    """A runner that keeps what it was asked."""

    max_model_len: int = 4096
    num_blocks: int = 8192
    device: torch.device = field(default_factory=lambda: torch.device("cuda"))
    prompts: object = field(default_factory=lambda: SimpleNamespace(lengths=(128, 256, 2048)))
    batches: list[Batch] = field(default_factory=list)
    forgot: bool = False

    def run(self, batch: Batch) -> StepOutput:
        self.batches.append(batch)
        return StepOutput(batch.step, tuple(Sampled(s.request_id, 1) for s in batch.segments))

    def forget(self) -> None:
        self.forgot = True


def warmed(max_num_seqs, budget, max_model_len=4096, num_blocks=8192, **more):
    runner = Recorded(max_model_len, num_blocks, **more)
    warm_up(runner, SchedulerConfig(max_num_seqs, budget, max_model_len), 16)
    return runner


def asked_beyond_argmax(params):
    """The options that differ from what asks for nothing."""
    return {f.name for f in fields(SamplingParams) if getattr(params, f.name) != getattr(warmup.GREEDY, f.name)}


@pytest.mark.parametrize("max_model_len", [1, 2, 100, 4096, 32768])
@pytest.mark.parametrize("num_blocks", [1, 7, 300, 8192])
@pytest.mark.parametrize(("max_num_seqs", "budget"), [(1, 16384), (32, 16384), (32, 33), (32, 32), (4, 2048)])
def test_every_step_is_one_that_the_limits_allow(max_model_len, num_blocks, max_num_seqs, budget):
    runner = warmed(max_num_seqs, budget, max_model_len, num_blocks)
    for batch in runner.batches:
        assert 0 < batch.num_tokens <= budget
        assert 0 < len(batch.segments) <= max_num_seqs
        assert [s.state_slot for s in batch.segments] in (
            list(range(len(batch.segments))),
            [max_num_seqs - 1],  # the first token of the chunk that comes last
        )
        assert len({s.request_id for s in batch.segments}) == len(batch.segments)
        decoding = [len(s.token_ids) == 1 and s.position > 0 for s in batch.segments]
        assert decoding == sorted(decoding, reverse=True)
        for s in batch.segments:
            end = s.position + len(s.token_ids)
            assert end <= min(max_model_len, 16 * len(s.block_ids))
            assert set(s.block_ids) <= set(range(num_blocks))
            assert s.zero_state is (s.position == 0)
            assert len(s.prompt_ids) + len(s.output_ids) == end or not s.sample
    prefill = runner.batches[0]
    blocks = [b for s in prefill.segments for b in s.block_ids]
    assert len(set(blocks)) == len(blocks)
    reachable = min(budget, max_num_seqs * max(1, max_model_len - 1), num_blocks * 16)
    assert prefill.num_tokens >= reachable - len(prefill.segments) * 16
    assert runner.forgot


@pytest.mark.parametrize("max_model_len", [300, 4096, 32768])
def test_on_cuda_the_largest_chunk_behind_the_longest_cache(max_model_len):
    runner = warmed(32, 2048, max_model_len)
    mixed = next(b for b in runner.batches if len(b.segments) == 32 and b.num_tokens > 32)
    *decoding, chunk = mixed.segments
    assert mixed.num_tokens == min(2048, max_model_len - 1 + 31)
    assert {s.position for s in decoding} == {max_model_len - 1}
    assert chunk.position + len(chunk.token_ids) == max_model_len
    assert all(s.sample for s in mixed.segments)


def test_on_cuda_every_graph_runs_and_nobody_asks_for_more_than_the_most_probable_id():
    """Every row's draws and log-probs together, and side streams, are no part of what a server holds from its start."""
    runner = warmed(32, 16384)
    assert {frozenset(asked_beyond_argmax(s.params)) for b in runner.batches for s in b.segments} == {frozenset()}
    decodes = [b for b in runner.batches if all(len(s.token_ids) == 1 and s.position for s in b.segments)]
    assert [len(b.segments) for b in decodes] == list(range(32, 0, -1))
    lengths = [b.num_tokens for b in runner.batches if len(b.segments) == 1 and b.segments[0].zero_state]
    assert [n for n in lengths if n in (128, 256, 2048)] == [128, 256, 2048]
    together = [[len(s.token_ids) for s in b.segments if s.zero_state] for b in runner.batches]
    assert all(sum(n <= fused_layers.SIDE_TOKENS for n in lengths) < WORTH_IT for lengths in together)


def test_on_a_cpu_every_option_and_the_log_probs_of_a_prompt():
    batches = warmed(2, 16384, device=torch.device("cpu"), prompts=None).batches
    at = next(i for i, b in enumerate(batches) if len(b.segments) == 2 and b.segments[1].params.prompt_logprobs)
    (before,), (decoding, chunk) = batches[at - 1].segments, batches[at].segments
    for segment in (decoding, chunk):
        left_out = {"prompt_logprobs"} if segment is not chunk else set()
        unlike_greedy = {f.name for f in fields(SamplingParams)} - {"max_tokens", "ignore_eos", "stop_token_ids"}
        assert asked_beyond_argmax(segment.params) == unlike_greedy - left_out
    # The log-probs of the chunk's ids begin with the hidden state that the chunk before it left in this slot.
    assert (before.position, before.state_slot, before.params.prompt_logprobs) == (0, chunk.state_slot, 20)
    assert before.prompt_ids == chunk.prompt_ids


def test_on_a_cpu_few_small_steps():
    batches = warmed(32, 16384, 262144, device=torch.device("cpu"), prompts=None).batches
    assert max(b.num_tokens for b in batches) <= 64
    assert max(s.position for b in batches for s in b.segments) < 128
    assert len(batches) == 5


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.06 GiB"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasLtCreate`"),
    ],
    ids=["torch", "driver", "cuBLAS"],
)
def test_too_little_memory_for_a_step_is_said_in_one_line(tiny_bf16_checkpoint, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(loading, "warm_up", fail)
    config = EngineConfig(ModelConfig(tiny_bf16_checkpoint, device="cpu"), scheduler=SchedulerConfig(max_model_len=64))
    with pytest.raises(PreconditionError, match=r"a step of 16384 tokens .* lower --max-num-batched-tokens") as told:
        load_engine(config, {})
    assert "\n" not in str(told.value)


def test_another_fault_of_a_step_keeps_its_traceback(tiny_bf16_checkpoint, monkeypatch):
    def fail(*_):
        raise RuntimeError("expected scalar type Float but found BFloat16")

    monkeypatch.setattr(loading, "warm_up", fail)
    config = EngineConfig(ModelConfig(tiny_bf16_checkpoint, device="cpu"), scheduler=SchedulerConfig(max_model_len=64))
    with pytest.raises(RuntimeError, match="scalar type"):
        load_engine(config, {})
