"""Closed forms, and the property everything rests on: swapping the arms gives the reciprocal."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.report.model import Direction
from gate.stats.band import Band, assumed
from gate.stats.holm import adjusted
from gate.stats.interval import moderated
from gate.stats.median import median, ratio
from gate.stats.pairs import log_ratios

VALUES = st.lists(st.tuples(st.floats(0.1, 1e4), st.floats(0.1, 1e4)), min_size=1, max_size=7)
DIRECTIONS = st.sampled_from(["higher", "lower"])


def test_log_ratios_are_direction_normalised() -> None:
    assert log_ratios([2.0, 4.0], [1.0, 1.0], "higher") == pytest.approx([math.log(2), math.log(4)])
    assert log_ratios([2.0], [1.0], "lower") == pytest.approx([-math.log(2)])


def test_a_half_pair_is_no_pair() -> None:
    assert log_ratios([2.0, None, 3.0], [None, 1.0, 3.0], "higher") == (0.0,)


def test_arms_of_different_length_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        log_ratios([1.0], [1.0, 2.0], "higher")


def test_zero_is_a_broken_stamp_not_a_perfect_engine() -> None:
    assert ratio(0.0, 1.0, "lower") is None
    assert ratio(1.0, 0.0, "higher") is None
    assert log_ratios([0.0], [1.0], "lower") == ()
    assert log_ratios([1.0], [0.0], "lower") == ()


def test_median_ignores_what_was_not_measured() -> None:
    assert median([None, 3.0, 1.0, 2.0]) == 2
    assert median([None]) is None
    assert ratio(None, 1.0, "higher") is None


@given(VALUES, DIRECTIONS)
def test_swapped_arms_give_the_reciprocal(values: list[tuple[float, float]], direction: Direction) -> None:
    a, b = [x for x, _ in values], [y for _, y in values]
    forward, backward = ratio(median(a), median(b), direction), ratio(median(b), median(a), direction)
    assert forward is not None
    assert backward is not None
    assert forward * backward == pytest.approx(1)
    band = assumed(0.01)
    ahead, behind = moderated(log_ratios(a, b, direction), band), moderated(log_ratios(b, a, direction), band)
    assert ahead is not None
    assert behind is not None
    assert (ahead.low, ahead.high) == pytest.approx((-behind.high, -behind.low))


@given(VALUES, st.floats(0.5, 2))
def test_a_change_of_unit_changes_nothing(values: list[tuple[float, float]], scale: float) -> None:
    a, b = [x for x, _ in values], [y for _, y in values]
    assert log_ratios([x * scale for x in a], [y * scale for y in b], "higher") == pytest.approx(
        log_ratios(a, b, "higher"), abs=1e-12
    )


def test_without_a_prior_it_is_the_textbook_paired_t() -> None:
    """d = 1, 2, 3 %: mean 2 %, s 1 %, t(2 df) = 4.3027, half width 4.3027 · 0.01 / √3 = 2.4841 %."""
    interval = moderated([0.01, 0.02, 0.03], Band(0.01, 0.0, 0.0, "calibrated"))
    assert interval is not None
    assert interval.mean == pytest.approx(0.02)
    assert interval.high - interval.mean == pytest.approx(0.024841, abs=1e-6)
    assert interval.df == 2


def test_two_pairs_without_a_prior() -> None:
    """d = 1, 3 %: s = √2 %, t(1 df) = 12.706, half width 12.706 · √2 % / √2."""
    interval = moderated([0.01, 0.03], Band(0.01, 0.0, 0.0, "calibrated"))
    assert interval is not None
    assert interval.high - interval.mean == pytest.approx(0.12706, abs=1e-5)
    assert interval.df == 1


def test_the_prior_is_weighed_by_its_degrees_of_freedom() -> None:
    """s0 = 0.5 %, d0 = 4, s = 1 %, n = 3: s̃² = (4·0.25 + 2·1)/6 = 0.5 in (%)², standard error √(0.5/3) %."""
    interval = moderated([0.01, 0.02, 0.03], assumed(0.01))
    assert interval is not None
    assert interval.standard_error == pytest.approx(0.01 * math.sqrt(0.5 / 3))
    assert interval.df == 6


def test_one_pair_has_the_prior_alone() -> None:
    interval = moderated([0.02], assumed(0.01))
    assert interval is not None
    assert interval.standard_error == pytest.approx(0.005)
    assert interval.df == 4


def test_no_pairs_or_no_variance_no_interval() -> None:
    assert moderated([], assumed(0.01)) is None
    assert moderated([0.02], Band(0.01, 0.0, 0.0, "calibrated")) is None
    assert moderated([0.02, 0.02, 0.02], Band(0.01, 0.0, 0.0, "calibrated")) is None


def test_p_below_is_the_other_side_of_the_interval() -> None:
    interval = moderated([-0.03, -0.02, -0.025], assumed(0.01))
    assert interval is not None
    assert interval.p_below(interval.high) == pytest.approx(0.025)
    assert interval.p_below(interval.mean) == pytest.approx(0.5)


def test_holm_by_hand() -> None:
    assert adjusted([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert adjusted([]) == ()
    assert adjusted([0.6, 0.7]) == (1.0, 1.0)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_lowers_a_p_nor_reorders(p_values: list[float]) -> None:
    result = adjusted(p_values)
    assert all(a >= p for a, p in zip(result, p_values, strict=True))
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert [result[i] for i in order] == sorted(result)


def test_the_ratio_is_direction_normalised() -> None:
    assert ratio(2.0, 1.0, "higher") == 2
    assert ratio(2.0, 1.0, "lower") == 0.5
