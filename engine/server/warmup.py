"""Steps before the server calls itself ready: what cannot run fails now, and no client waits for a first use.

On CUDA they are the largest that the limits allow, of every kind that asks for memory of its own. What they took stays
with the allocator, so later steps find it there, or it is missing here and not in the middle of an answer.
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
SIDE_BY_SIDE = 2048
"""Tokens of the longest prompt whose state may be computed beside others' (models/fused_layers), each with memory of
its own."""


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
    steps = [shapes.prompts(), *shapes.behind_a_long_cache(), shapes.decodes(shapes.rows, ALL_OPTIONS)]
    if cuda:
        steps.append(shapes.side_by_side())
        # A graph's first launch asks the driver for memory too.
        steps += [shapes.decodes(n, GREEDY) for n in range(shapes.rows, 0, -1)]
        if runner.prompts is not None:
            steps += [shapes.prompt(n) for n in runner.prompts.lengths]
    else:
        steps.append(shapes.decodes(1, GREEDY))
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

    def behind_a_long_cache(self) -> Iterator[tuple[Segment, ...]]:
        """The largest chunk at the end of the longest sequence, beside all who can decode there, with every option.

        Log-probs of the prompt need a chunk before it, which is its first token.
        """
        beside = self.rows - 1
        chunk = min(self.tokens - beside, self.longest - 1)
        if chunk < 2:
            return
        scored = replace(ALL_OPTIONS, prompt_logprobs=20)
        prompt = (0,) * (self.longest - chunk + min(SCORED, chunk))
        first = self._segment(beside, 0, 1, scored)
        yield (replace(first, prompt_ids=prompt, sample=False),)
        last = self._segment(beside, self.longest - chunk, chunk, scored)
        rest = (0,) * (self.longest - len(prompt))
        yield (*self.decodes(beside, ALL_OPTIONS), replace(last, prompt_ids=prompt, output_ids=rest))

    def decodes(self, rows: int, params: SamplingParams) -> tuple[Segment, ...]:
        """At the last token of the longest sequence."""
        return tuple(self._segment(row, self.longest - 1, 1, params) for row in range(rows))

    def side_by_side(self) -> tuple[Segment, ...]:
        """As many prompts of SIDE_BY_SIDE tokens as a step holds."""
        each = min(SIDE_BY_SIDE, self.longest, self.tokens)
        return tuple(self._segment(row, 0, each, GREEDY) for row in range(min(self.rows, self.tokens // each)))

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
