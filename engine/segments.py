"""Segments: a request's share of a step, of the tokens it was granted or of the one that is still to be sampled."""

from __future__ import annotations

from dataclasses import replace

from engine.batch import UNKNOWN, Segment
from engine.request import Request


def of(request: Request, tokens: int) -> Segment:
    """Its next `tokens` tokens."""
    assert request.state_slot is not None
    start, end = request.computed_tokens, request.computed_tokens + tokens
    return Segment(
        request_id=request.id,
        token_ids=request.ids(start, end),
        position=start,
        block_ids=tuple(request.block_ids),
        state_slot=request.state_slot,
        zero_state=start == 0,
        sample=end == request.total_tokens,
        params=request.params,
        prompt_ids=request.prompt_ids,
        output_ids=request.output_ids,
        eos_ids=request.eos_ids,
    )


def following(row: int, before: Segment, request: Request) -> Segment:
    """The segment of one token that comes after `before`, which is row `row` of its step."""
    return replace(
        before,
        token_ids=(UNKNOWN,),
        position=before.position + len(before.token_ids),
        block_ids=tuple(request.block_ids),
        zero_state=False,
        feed=row,
    )
