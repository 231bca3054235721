"""The oracle by its own measure: spread, indecision at each edge, tie-breaks."""

from __future__ import annotations

import math

import pytest

from gate.tokens.own import EDGES_NATS, TieBreaks, own, tie_breaks, usable
from tests.gate.tokens.making import ORACLE, forced


def test_nothing_asked_is_nothing_known() -> None:
    found = own([forced(ORACLE, arm="oracle", error="gone")])
    assert (found.sequences, found.positions, found.largest_nats, found.outside_top) == (0, 0, None, 0)
    assert found.undecided == (0,) * len(EDGES_NATS)


def test_spread_is_the_largest_gap_of_all_its_ids() -> None:
    found = own([forced(ORACLE, {1: 0.1, 4: 0.3}, arm="oracle"), forced(ORACLE, {2: 0.2, 3: None}, arm="oracle")])
    assert (found.sequences, found.positions, found.largest_nats, found.outside_top) == (2, 12, 0.3, 1)


@pytest.mark.parametrize("edge", EDGES_NATS)
def test_a_lead_at_an_edge_is_undecided_there_and_just_above_it_is_not(edge: float) -> None:
    at = EDGES_NATS.index(edge)
    on, above = (own([forced((1,), leads={0: x})]).undecided for x in (edge, math.nextafter(edge, 9)))
    assert (on[at], above[at]) == (1, 0)


def test_the_edges_are_those_that_reports_name() -> None:
    edges = (0.0, 0.001, 0.01, 0.1, 0.25, 0.5, 1.0)
    on, above = ([step(edge) for edge in edges] for step in (float, lambda edge: math.nextafter(edge, 9)))
    assert own([forced(range(7), leads=dict(enumerate(on)))]).undecided == (1, 2, 3, 4, 5, 6, 7)
    assert own([forced(range(7), leads=dict(enumerate(above)))]).undecided == (0, 1, 2, 3, 4, 5, 6)


def test_a_position_without_a_lead_is_not_called_undecided() -> None:
    row = forced((1, 2)).model_copy(update={"leads_nats": (None, 0.0)})
    assert own([row]).undecided == (1,) * len(EDGES_NATS)


def test_an_opinion_with_an_error_is_none_however_whole_its_lists_are() -> None:
    assert usable(forced(ORACLE)) is True
    assert usable(forced(ORACLE).model_copy(update={"error": "gone"})) is False


def test_the_histogram_is_cumulative() -> None:
    found = own([forced(ORACLE, leads=dict(enumerate((0.0, 0.0005, 0.005, 0.05, 0.2, 5.0))))])
    assert found.undecided == (1, 2, 3, 4, 5, 5, 5)


def test_ties_to_the_higher_id_are_counted_and_only_ties() -> None:
    low = forced((5, 7), leads={0: 0.0}, best={0: 5})
    high = forced((9, 7), leads={0: 0.0}, best={0: 5})
    no_tie = forced((9, 7), leads={0: 0.1}, best={0: 5})
    third = forced((9, 7), {0: 0.1}, leads={0: 0.0}, best={0: 5})
    outside = forced((9, 7), {0: None}, leads={0: 0.0}, best={0: 5})
    assert tie_breaks([low]) == TieBreaks(2, 1, 0, 0)
    assert tie_breaks([high]) == TieBreaks(2, 1, 1, 0)
    assert tie_breaks([no_tie]) == TieBreaks(2, 0, 0, 0)
    assert tie_breaks([third]) == TieBreaks(2, 0, 0, 1)
    assert tie_breaks([outside]) == TieBreaks(2, 0, 0, 1)
    assert tie_breaks([forced((1,), error="gone")]) == TieBreaks(0, 0, 0, 0)
    assert tie_breaks([low, high, high, third]) == TieBreaks(8, 3, 2, 1)
