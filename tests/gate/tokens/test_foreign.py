"""Ids of another request: named when there are enough of them to tell, and not the request's own."""

from __future__ import annotations

from gate.tokens.foreign import RUN, foreign

MINE, THEIRS = tuple(range(20)), tuple(range(100, 120))


def test_a_run_of_another_request_is_found_wherever_it_lies_there() -> None:
    ids = (*MINE[:3], *THEIRS[12:20])
    assert foreign(ids, 3, [MINE], {7: MINE[::-1], 4: THEIRS}) == 4


def test_too_few_ids_tell_nothing() -> None:
    ids = (*MINE[:3], *THEIRS[: RUN - 1])
    assert foreign(ids, 3, [MINE], {4: THEIRS}) is None
    assert foreign((*ids, THEIRS[RUN - 1]), 3, [MINE], {4: THEIRS}) == 4
    assert RUN == 8


def test_what_its_own_answers_hold_is_its_own() -> None:
    ids = (*MINE[:3], *THEIRS[:RUN])
    assert foreign(ids, 3, [MINE, (*MINE, *THEIRS)], {4: THEIRS}) is None


def test_ids_of_nobody_are_nobodys() -> None:
    assert foreign((*MINE[:3], *range(500, 510)), 3, [MINE], {4: THEIRS}) is None
