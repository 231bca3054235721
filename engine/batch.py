"""The contract between scheduler and runner: one step in, one step out. Each field names its writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.request import FinishReason, SamplingParams

UNKNOWN = -1
"""Stands in Segment.token_ids for an id that the step in flight is still to sample."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One request's share of a step. Written by the scheduler, read by the runner."""

    request_id: str
    token_ids: tuple[int, ...]
    """Ids to run, one for decode, a chunk for prefill."""
    position: int
    """Index of token_ids[0] in the sequence: how many tokens the caches already hold."""
    block_ids: tuple[int, ...]
    """KV blocks that cover position + len(token_ids) tokens, in order."""
    state_slot: int
    zero_state: bool
    """First segment since the slot was assigned: the runner clears conv and recurrent state before use."""
    sample: bool
    """The last of token_ids ends the known sequence: sample the next one from its logits."""
    params: SamplingParams
    prompt_ids: Sequence[int] = ()
    """For penalties and prompt_logprobs."""
    output_ids: Sequence[int] = ()
    """Tokens generated so far; a snapshot is not needed, the runner reads it before it returns. With `feed` the id that
    is still to be sampled is not among them."""
    eos_ids: frozenset[int] = frozenset()
    """Masked while fewer than params.min_tokens were generated."""
    feed: int | None = None
    """Row of the step in flight whose sampled id is this segment's one token; token_ids is (UNKNOWN,) then."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step. Decode segments come first, then prefill chunks."""

    step: int
    segments: tuple[Segment, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(s.token_ids) for s in self.segments)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities (natural log, fp32, before temperature and penalties) at one position."""

    token_id: int
    logprob: float
    rank: int
    """1 is the most probable; ties share the lower rank's order by id."""
    top: tuple[tuple[int, float], ...]
    """(id, logprob), most probable first, ties by lowest id; as many as were asked for."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the runner made of one segment. Written by the runner, read by the loop."""

    request_id: str
    token_id: int | None
    """None where Segment.sample was false."""
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    """One per id of the segment that is part of the prompt: the log-prob of that id given what is before it.
    The very first token of a sequence has none (None)."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    step: int
    sampled: tuple[Sampled, ...]
    """In the order of Batch.segments."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A step that was submitted. Written by the runner, redeemed by the loop."""

    batch: Batch
    followable: bool
    """Its ids are where the next step can take them: that one may be submitted before this is finished."""
    finish: Callable[[], StepOutput]
    """Waits for the step; called once, in the order of submission."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the loop hands to a request's listener after a step. The last one has a finish_reason."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None
