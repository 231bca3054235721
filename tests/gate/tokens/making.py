"""Pairs and opinions made by hand, for the tests of the token judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gate.observe.rows import Arm
from gate.observe.tokenrows import ForcedRow, Place
from gate.tokens.compare import Pair

ORACLE = (10, 11, 12, 13, 14, 15)


def place(index: int = 0, concurrency: int = 2, repetition: int = 0) -> Place:
    return Place(kind="leg", concurrency=concurrency, repetition=repetition, index=index)


def pair(
    candidate: Sequence[int] | None = ORACLE, *takes: Sequence[int] | None, index: int = 0, expected: int = 6
) -> Pair:
    """The oracle answered ORACLE unless takes are given."""
    oracle = tuple(None if take is None else tuple(take) for take in takes or (ORACLE,))
    return Pair(place(index), expected, None if candidate is None else tuple(candidate), oracle)


def forced(
    ids: Sequence[int],
    gaps: Mapping[int, float | None] | None = None,
    *,
    arm: Arm = "candidate",
    index: int = 0,
    leads: Mapping[int, float] | None = None,
    best: Mapping[int, int] | None = None,
    error: str | None = None,
) -> ForcedRow:
    """Its own choice by 2 nats everywhere, but where `gaps` says otherwise; None is outside the top."""
    gaps, leads, best = gaps or {}, leads or {}, best or {}
    if error is not None:
        return ForcedRow(**place(index).model_dump(), arm=arm, token_ids=tuple(ids), error=error)
    return ForcedRow(
        **place(index).model_dump(),
        arm=arm,
        token_ids=tuple(ids),
        gaps_nats=tuple(gaps.get(at, 0.0) for at in range(len(ids))),
        outside_top=tuple(at in gaps and gaps[at] is None for at in range(len(ids))),
        leads_nats=tuple(leads.get(at, 2.0) for at in range(len(ids))),
        best_ids=tuple(best.get(at, token) for at, token in enumerate(ids)),
    )
