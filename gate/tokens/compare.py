"""Both arms' greedy ids at one concurrency -> counts and divergences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gate.observe.rows import MarginRow, RequestRow
from gate.report.model import Divergence
from gate.tokens.first_divergence import first_divergence
from gate.tokens.near_tie import Kind, classify


@dataclass(frozen=True, slots=True)
class Comparison:
    sequences: int
    """Pairs of requests with equal prompts that were compared; each repetition has prompts of its own."""
    exact: int
    near_tie: int
    diverged: int
    unjudged: int
    uncompared: int
    """Pairs in which an arm returned no ids, or ids of another length."""
    max_margin_nats: float | None
    divergences: tuple[Divergence, ...]


def pair_up(candidate: Iterable[RequestRow], oracle: Iterable[RequestRow]) -> tuple[tuple[RequestRow, RequestRow], ...]:
    """Requests of one repetition with equal index and equal prompt."""
    theirs = {request.index: request for request in oracle}
    both = [(request, theirs[request.index]) for request in candidate if request.index in theirs]
    return tuple((ours, other) for ours, other in both if ours.prompt_sha256 == other.prompt_sha256)


def divergence(ours: RequestRow, theirs: RequestRow) -> Divergence | None:
    """The first difference, its margin not yet known; None when the outputs are equal.

    Raises:
        ValueError: a request without ids, or ids of different length: not comparable.
    """
    if ours.token_ids is None or theirs.token_ids is None:
        raise ValueError("a request without token ids")
    position = first_divergence(ours.token_ids, theirs.token_ids)
    if position is None:
        return None
    return Divergence(
        concurrency=ours.concurrency,
        repetition=ours.repetition,
        index=ours.index,
        position=position,
        candidate_id=ours.token_ids[position],
        oracle_id=theirs.token_ids[position],
        margin_nats=None,
    )


def compare(
    pairs: Sequence[tuple[RequestRow, RequestRow]], margins: Iterable[MarginRow], bound_nats: float
) -> Comparison:
    """Count what the pairs of one concurrency are."""
    known = {(m.concurrency, m.repetition, m.index, m.position, m.candidate_id, m.oracle_id): m for m in margins}
    kinds: list[Kind] = []
    found: list[Divergence] = []
    exact = uncompared = 0
    for ours, theirs in pairs:
        if not comparable(ours, theirs):
            uncompared += 1
            continue
        split = divergence(ours, theirs)
        if split is None:
            exact += 1
            continue
        key = (split.concurrency, split.repetition, split.index, split.position, split.candidate_id, split.oracle_id)
        margin = known.get(key)
        kinds.append(classify(margin, bound_nats))
        found.append(split.model_copy(update={"margin_nats": margin.margin_nats if margin else None}))
    measured = [d.margin_nats for d in found if d.margin_nats is not None]
    return Comparison(
        sequences=len(pairs) - uncompared,
        exact=exact,
        near_tie=kinds.count(Kind.NEAR_TIE),
        diverged=kinds.count(Kind.DIVERGED),
        unjudged=kinds.count(Kind.UNJUDGED),
        uncompared=uncompared,
        max_margin_nats=max(measured, default=None),
        divergences=tuple(found),
    )


def comparable(ours: RequestRow, theirs: RequestRow) -> bool:
    """Both arms returned ids, and as many as were asked for."""
    if ours.token_ids is None or theirs.token_ids is None:
        return False
    return len(ours.token_ids) == len(theirs.token_ids) == ours.expected_output_tokens
