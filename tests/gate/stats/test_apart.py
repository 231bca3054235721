"""Arms that lie apart: the bounds, and how often noise alone makes arms lie apart that do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.stats.apart import apart

FIGURES = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=40)


def test_all_against_all_where_there_is_no_tenth() -> None:
    found = apart([10.0, 12.0, 8.0], [30.0, 24.0, 40.0], "lower")
    assert found is not None
    assert (found.least, found.most) == (2.0, 5.0)
    found = apart([30.0, 24.0, 40.0], [10.0, 12.0, 8.0], "higher")
    assert found is not None
    assert (found.least, found.most) == (2.0, 5.0)


@pytest.mark.parametrize(("outliers", "count", "least"), [(1, 10, 0.1), (1, 11, 2.0), (2, 20, 0.1), (2, 21, 2.0)])
def test_the_slowest_tenth_is_left_out(outliers: int, count: int, least: float) -> None:
    slow = [10.0] * (count - outliers) + [200.0] * outliers
    found = apart(slow, [20.0] * count, "lower")
    assert found is not None
    assert found.least == pytest.approx(least)


@pytest.mark.parametrize("figures", [([], [1.0]), ([1.0], []), ([0.0, 1.0], [1.0]), ([1.0], [1.0, -1.0])])
def test_what_was_not_measured_has_no_bound(figures: tuple[list[float], list[float]]) -> None:
    assert apart(*figures, "lower") is None


@given(FIGURES, FIGURES)
def test_bounds_are_in_order_and_swapping_the_arms_gives_the_reciprocals(
    mine: list[float], theirs: list[float]
) -> None:
    there, back = apart(mine, theirs, "lower"), apart(theirs, mine, "lower")
    assert there is not None
    assert back is not None
    assert there.least <= there.most
    assert (back.least, back.most) == (pytest.approx(1 / there.most), pytest.approx(1 / there.least))
    assert apart(theirs, mine, "higher") == there  # a rate is better the other way round


@given(FIGURES, FIGURES)
def test_nine_in_ten_are_ahead_by_the_bound(mine: list[float], theirs: list[float]) -> None:
    found = apart(mine, theirs, "lower")
    assert found is not None
    fast_theirs, slow_mine = min(theirs), max(mine)
    if found.least > 1:
        cut = slow_mine if len(mine) < 11 else sorted(mine)[-1 - len(mine) // 11]
        assert sum(value <= cut for value in mine) >= 0.9 * len(mine)
    assert found.least >= fast_theirs / slow_mine * (1 - 1e-12)


LEGS, REQUESTS, GATES = 3, 16, 4000


def simulated(true: float, regime: float, rng: np.random.Generator) -> tuple[list[float], list[float]]:
    """Both arms' latencies: each leg begins in one of two regimes of the host and may change to the other once."""

    def arm(level: float) -> list[float]:
        made: list[float] = []
        for _ in range(LEGS):
            change = rng.integers(0, 2 * REQUESTS)
            slow = (np.arange(REQUESTS) >= change) ^ bool(rng.integers(2))
            made += list(level * np.where(slow, regime, 1.0) * np.exp(rng.normal(0, 0.03, REQUESTS)))
        return made

    return arm(1.0), arm(true)


@pytest.mark.parametrize("regime", [1.05, 1.2, 1.5])
@pytest.mark.parametrize("true", [0.97, 0.99, 1.0])
def test_noise_of_the_host_hardly_ever_makes_equal_arms_lie_apart(true: float, regime: float) -> None:
    """docs/verdict.md quotes it. Where an arm has one regime in all of its legs, no finding calls for a bound."""
    rng = np.random.default_rng(7)
    passed = failed = 0
    for _ in range(GATES):
        found = apart(*simulated(true, regime, rng), "lower")
        assert found is not None
        passed += found.above(1.0, 0.0)
        failed += found.below(0.99, 0.0)
    assert passed <= 0.01 * GATES
    assert failed <= 0.01 * GATES


def test_twice_as_fast_is_seen_through_it() -> None:
    rng = np.random.default_rng(7)
    bounds = [apart(*simulated(2.0, 1.5, rng), "lower") for _ in range(400)]
    least = [found.least for found in bounds if found is not None]
    assert len(least) == 400
    assert min(least) >= 1.0
    assert sum(bound > 2.0 for bound in least) <= 8
