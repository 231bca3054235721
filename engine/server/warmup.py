"""Two steps before the server calls itself ready: what cannot run fails now, and no client waits for a first use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from engine.batch import Batch, Segment
from engine.config import SchedulerConfig
from engine.request import SamplingParams

if TYPE_CHECKING:
    from engine.runner import LoadedRunner

CPU_TOKENS = 64
"""Of the prefill on a CPU, where nothing depends on its size."""


def warm_up(runner: LoadedRunner, limits: SchedulerConfig, block_tokens: int) -> None:
    """One prefill and one decode step, past the scheduler: counters start at 0; all blocks and slots are free.

    On CUDA the prefill is the largest step the limits allow: the memory of its activations is taken once and at its
    largest, or found missing here and not by a client. Raises what the runner raises, torch.OutOfMemoryError too.
    """
    tokens = limits.max_num_batched_tokens if runner.device.type == "cuda" else CPU_TOKENS
    params = SamplingParams(max_tokens=2, temperature=0.0)
    longest, blocks = runner.max_model_len, range(runner.num_blocks)
    segments: list[Segment] = []
    while tokens > 0 and blocks and len(segments) < limits.max_num_seqs:
        room = min(tokens, longest, len(blocks) * block_tokens)
        mine, blocks = blocks[: -(-room // block_tokens)], blocks[-(-room // block_tokens) :]
        prompt = (0,) * max(1, room - 1)  # the token after it has a place too
        segments.append(Segment("warm-up", prompt, 0, tuple(mine), len(segments), True, True, params, prompt))
        tokens -= len(prompt)
    token = runner.run(Batch(0, tuple(segments))).sampled[0].token_id
    first = segments[0]
    if token is not None and len(first.token_ids) < min(longest, len(first.block_ids) * block_tokens):
        after = replace(first, token_ids=(token,), position=len(first.token_ids), zero_state=False)
        runner.run(Batch(0, (replace(after, output_ids=(token,)),)))
