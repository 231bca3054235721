"""6 Whose ids these are: a wrong answer that continues another request's is shared state, and worth a name. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

RUN = 8
"""Consecutive ids. By chance two answers share so many about once in V^8; a text that repeats itself is looked up in
the request's own answers first."""


def foreign(
    ids: Sequence[int], position: int, own: Sequence[Sequence[int]], others: Mapping[int, Sequence[int]]
) -> int | None:
    """Index of the request whose ids `ids` goes on with from `position`; None when it is none, or too short to tell.

    own: the oracle's answers to this request. others: its answers to the others, by index.
    """
    piece = tuple(ids[position : position + RUN])
    if len(piece) < RUN or any(_holds(answer, piece) for answer in own):
        return None
    return next((index for index, answer in others.items() if _holds(answer, piece)), None)


def _holds(answer: Sequence[int], piece: tuple[int, ...]) -> bool:
    return any(tuple(answer[at : at + RUN]) == piece for at in range(len(answer) - RUN + 1))
