"""Each bound at its edge: what is a near tie, what is undecided, what is wrong, and what earns a wider bound."""

from __future__ import annotations

import math

import pytest

from gate.tokens.marks import CEILING_NATS, Bounds, Mark, bounds, mark

FLOOR = 0.25


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        (0.0, Mark.RIGHT),
        (-1e-9, Mark.RIGHT),
        (1e-9, Mark.NEAR_TIE),
        (0.25, Mark.NEAR_TIE),
        (math.nextafter(0.25, 1), Mark.UNDECIDED),
        (0.75, Mark.UNDECIDED),
        (math.nextafter(0.75, 1), Mark.WRONG),
        (None, Mark.WRONG),
    ],
)
def test_a_gap_at_each_edge(gap: float | None, expected: Mark) -> None:
    assert mark(gap, Bounds(near_nats=0.25, wrong_nats=0.75)) is expected


def test_outside_the_top_is_undecided_only_where_the_oracles_own_ids_are() -> None:
    assert mark(None, Bounds(0.25, math.inf)) is Mark.UNDECIDED
    assert mark(100.0, Bounds(0.25, math.inf)) is Mark.UNDECIDED


@pytest.mark.parametrize("agrees", [True, None])
def test_an_oracle_that_agrees_with_itself_earns_no_wider_bound(agrees: bool | None) -> None:
    assert bounds(FLOOR, 0.4, 0, agrees) == Bounds(near_nats=FLOOR, wrong_nats=0.8)


def test_one_that_does_not_widens_it_by_its_own_spread_up_to_the_ceiling() -> None:
    assert bounds(FLOOR, 0.4, 0, agrees=False) == Bounds(0.4, 0.8)
    assert bounds(FLOOR, CEILING_NATS, 0, agrees=False) == Bounds(CEILING_NATS, 1.0)
    assert bounds(FLOOR, 3.0, 0, agrees=False) == Bounds(CEILING_NATS, 6.0)


@pytest.mark.parametrize("own", [None, 0.0, 0.1, FLOOR / 2])
def test_the_floor_holds_however_little_was_seen_of_the_oracle(own: float | None) -> None:
    """The largest of a few sequences is small: neither bound may rest on it alone."""
    assert bounds(FLOOR, own, 0, agrees=False) == Bounds(FLOOR, 2 * FLOOR)
    assert bounds(FLOOR, own, 0, agrees=True) == Bounds(FLOOR, 2 * FLOOR)


def test_a_floor_above_the_ceiling_is_the_bound() -> None:
    assert bounds(1.0, 3.0, 0, agrees=False) == Bounds(1.0, 6.0)


def test_only_beyond_twice_its_own_spread_is_a_gap_wrong() -> None:
    assert bounds(FLOOR, FLOOR, 0, agrees=True) == Bounds(FLOOR, 2 * FLOOR)
    assert bounds(FLOOR, math.nextafter(FLOOR, 1), 0, agrees=True).wrong_nats > 2 * FLOOR


def test_no_figure_is_wrong_where_the_oracles_own_ids_are_outside_its_top() -> None:
    assert bounds(FLOOR, 0.1, 1, agrees=True) == Bounds(FLOOR, math.inf)


def test_without_a_floor_only_exact_ties_are_excused() -> None:
    strict = bounds(0.0, None, 0, agrees=True)
    assert mark(0.0, strict) is Mark.RIGHT
    assert mark(1e-12, strict) is Mark.WRONG
