"""Steps before the server calls itself ready: what cannot run fails now, and no client waits for a first use.

On CUDA they are the largest that the limits allow, and launch every graph once. What they took stays with the
allocator, so later steps find it there, or it is missing here and not in the middle of an answer.

Greedy there. With draws and log-probs of all rows, and prompts on side streams, among them (85c082b) the 35B was ready
with 29.1 GB of an H200, more than vLLM holds under load, where it had been 27.2 before; what each of them took was not
measured (results/h200/tests/20261201-9d358bd-engine-cuda.txt). Few servers ever do all that at that size. Such steps
ask for memory when they come; where there is none then, no running request ends for it (loop.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.batch import Batch, Segment
from engine.config import SchedulerConfig
from engine.request import SamplingParams

if TYPE_CHECKING:
    from engine.runner import LoadedRunner

CPU_TOKENS, CPU_ROWS, CPU_CONTEXT = 64, 2, 128
"""Of a step on a CPU, where nothing depends on its size."""

GREEDY = SamplingParams(max_tokens=2, temperature=0.0)
ALL_OPTIONS = SamplingParams(
    max_tokens=2,
    min_tokens=2,
    temperature=1.0,
    top_p=0.9,
    top_k=50,
    min_p=0.01,
    seed=0,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias=((0, 1.0),),
    logprobs=20,
)
SCORED = 65
"""Prompt ids with log-probs: one more than go through lm_head at once (logprobs.ROWS_AT_ONCE). More cost only time."""


def warm_up(runner: LoadedRunner, limits: SchedulerConfig, block_tokens: int) -> None:
    """Past the scheduler: counters start at 0; all blocks and slots are free. 0.22 s for the tiny model on a CPU, where
    a prompt and a token after it took 0.07. Raises what the runner raises, torch.OutOfMemoryError too.
    """
    cuda = runner.device.type == "cuda"
    shapes = _Shapes(
        tokens=limits.max_num_batched_tokens if cuda else CPU_TOKENS,
        rows=limits.max_num_seqs if cuda else min(CPU_ROWS, limits.max_num_seqs),
        longest=min(runner.max_model_len, runner.num_blocks * block_tokens, *(() if cuda else (CPU_CONTEXT,))),
        max_model_len=runner.max_model_len,
        num_blocks=runner.num_blocks,
        block_tokens=block_tokens,
    )
    steps = [shapes.prompts()]
    if cuda:
        steps += shapes.behind_a_long_cache(GREEDY)
        # A graph's first launch asks the driver for memory too.
        steps += [shapes.decodes(n, GREEDY) for n in range(shapes.rows, 0, -1)]
        if runner.prompts is not None:
            steps += [shapes.prompt(n) for n in runner.prompts.lengths]
    else:
        steps += shapes.behind_a_long_cache(ALL_OPTIONS)
        steps += [shapes.decodes(shapes.rows, ALL_OPTIONS), shapes.decodes(1, GREEDY)]
    for segments in steps:
        runner.run(Batch(0, segments))
    runner.forget()


@dataclass(frozen=True, slots=True)
class _Shapes:
    """Steps of token 0. Sequences share KV blocks where there are not enough: nobody reads what comes out."""

    tokens: int
    """The most in a step."""
    rows: int
    """The most sequences."""
    longest: int
    """Tokens of the longest sequence that a block table may hold here."""
    max_model_len: int
    num_blocks: int
    block_tokens: int

    def prompts(self) -> tuple[Segment, ...]:
        """The largest step that begins prompts, greedy: as few as hold all its tokens, each in blocks of its own."""
        tokens, blocks, segments = self.tokens, range(self.num_blocks), list[Segment]()
        while tokens > 0 and blocks and len(segments) < self.rows:
            room = min(tokens, self.max_model_len, len(blocks) * self.block_tokens)
            mine, blocks = blocks[: self._blocks(room)], blocks[self._blocks(room) :]
            # The token after it has a place too.
            segments.append(self._segment(len(segments), 0, max(1, room - 1), GREEDY, tuple(mine)))
            tokens -= len(segments[-1].token_ids)
        return tuple(segments)

    def behind_a_long_cache(self, params: SamplingParams) -> Iterator[tuple[Segment, ...]]:
        """The largest chunk at the end of the longest sequence, beside all who can decode there.

        With `params` that ask for log-probs the chunk's prompt has some too. They need a chunk before it, which is its
        first token.
        """
        beside = self.rows - 1
        chunk = min(self.tokens - beside, self.longest - 1)
        if chunk < 2:
            return
        scored = params if params.logprobs is None else replace(params, prompt_logprobs=params.logprobs)
        prompt = (0,) * (self.longest - chunk + min(SCORED, chunk))
        if scored.prompt_logprobs is not None:
            first = self._segment(beside, 0, 1, scored)
            yield (replace(first, prompt_ids=prompt, sample=False),)
        last = self._segment(beside, self.longest - chunk, chunk, scored)
        rest = (0,) * (self.longest - len(prompt))
        yield (*self.decodes(beside, params), replace(last, prompt_ids=prompt, output_ids=rest))

    def decodes(self, rows: int, params: SamplingParams) -> tuple[Segment, ...]:
        """At the last token of the longest sequence."""
        return tuple(self._segment(row, self.longest - 1, 1, params) for row in range(rows))

    def prompt(self, tokens: int) -> tuple[Segment, ...]:
        """Of so many tokens, or the most that there can be."""
        return (self._segment(0, 0, min(tokens, self.longest, self.tokens), GREEDY),)

    def _segment(
        self, row: int, position: int, tokens: int, params: SamplingParams, blocks: tuple[int, ...] = ()
    ) -> Segment:
        end = position + tokens
        return Segment(
            request_id=f"warm-up-{row}",
            token_ids=(0,) * tokens,
            position=position,
            block_ids=blocks or tuple(range(self._blocks(end))),
            state_slot=row,
            zero_state=position == 0,
            sample=True,
            params=params,
            prompt_ids=(0,) * end,
            eos_ids=frozenset({0}),
        )

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)
