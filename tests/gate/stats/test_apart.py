"""Arms that lie apart: the bound, what it must exceed, and how often noise alone makes equal arms lie apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.stats.apart import Apart, ahead, moved

FIGURES = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=40)
SPREAD = 0.05


def test_all_against_all_where_there_is_no_tenth() -> None:
    assert ahead([10.0, 12.0, 8.0], [30.0, 24.0, 40.0], rate=False) == 2.0
    assert ahead([30.0, 24.0, 40.0], [10.0, 12.0, 8.0], rate=True) == 2.0


@pytest.mark.parametrize(("outliers", "count", "least"), [(1, 10, 0.1), (1, 11, 2.0), (2, 20, 0.1), (2, 21, 2.0)])
def test_the_slowest_tenth_is_left_out(outliers: int, count: int, least: float) -> None:
    slow = [10.0] * (count - outliers) + [200.0] * outliers
    assert ahead(slow, [20.0] * count, rate=False) == pytest.approx(least)
    assert ahead([1 / figure for figure in slow], [1 / 20.0] * count, rate=True) == pytest.approx(least)


@pytest.mark.parametrize(
    "figures",
    [([], [1.0]), ([1.0], []), ([0.0, 1.0], [1.0]), ([1.0], [1.0, -1.0]), ([1.0, None], [2.0]), ([1.0], [None])],
)
@pytest.mark.parametrize("rate", [False, True])
def test_what_was_not_measured_is_ahead_of_nobody(figures: tuple[list[float], list[float]], rate: bool) -> None:
    assert ahead(*figures, rate=rate) == 0


@given(FIGURES, FIGURES)
def test_not_both_arms_are_ahead(mine: list[float], theirs: list[float]) -> None:
    there, back = ahead(mine, theirs, rate=False), ahead(theirs, mine, rate=False)
    assert there * back <= 1 + 1e-9
    assert min(theirs) / max(mine) * (1 - 1e-12) <= there <= max(theirs) / min(mine) * (1 + 1e-12)


def test_what_equal_repetitions_differed_by_is_of_the_arm_that_moved_more() -> None:
    assert moved([10.0, 12.0, 11.0], [10.0, 10.0]) == pytest.approx(0.2)
    assert moved([10.0, 10.0], [10.0, 15.0, 12.0]) == pytest.approx(0.5)


@pytest.mark.parametrize(("least", "found", "clears"), [(1.2, 0.2, True), (1.19, 0.2, False), (1.05, 0.0, True)])
def test_more_than_moved_and_more_than_may_move(least: float, found: float, clears: bool) -> None:
    assert Apart(least, found).clears(1.0, SPREAD) is clears
    assert not Apart(1.04, 0.0).clears(1.0, SPREAD)
    assert Apart(least, found).clears(1.1, SPREAD) is (least >= 1.1 * (1 + max(found, SPREAD)))


LEGS, REQUESTS, GATES = 3, 16, 4000

Gate = tuple[list[list[float]], list[list[float]]]
"""Latencies of the candidate's legs and of the oracle's."""


def regimes(true: float, share: float, rng: np.random.Generator) -> Gate:
    """Each leg begins in one of two states of the host, the slow one so much slower, and may change once."""

    def arm(level: float) -> list[list[float]]:
        made = []
        for _ in range(LEGS):
            slow = (np.arange(REQUESTS) >= rng.integers(0, 2 * REQUESTS)) ^ bool(rng.integers(2))
            made.append(list(level * np.where(slow, 1 + share, 1.0) * np.exp(rng.normal(0, 0.03, REQUESTS))))
        return made

    return arm(1.0), arm(true)


def scattered(true: float, share: float, rng: np.random.Generator) -> Gate:
    """Legs of a pace of their own, log-normal with this standard deviation."""

    def arm(level: float) -> list[list[float]]:
        paces = level * np.exp(rng.normal(0, share, LEGS))
        return [list(pace * np.exp(rng.normal(0, 0.03, REQUESTS))) for pace in paces]

    return arm(1.0), arm(true)


def passes(gate: Gate, *, rate: bool) -> bool | None:
    """As gate/bounds.py and the verdict have it; None where legs lie so close that nothing calls for a bound."""
    medians = [[float(np.median(leg)) for leg in arm] for arm in gate]
    if moved(*medians) <= SPREAD:
        return None
    if rate:
        values = [[1 / float(np.mean(leg)) for leg in arm] for arm in gate]
        least, found = ahead(*values, rate=True), moved(*values)
    else:
        whole = ahead(*([figure for leg in arm for figure in leg] for arm in gate), rate=False)
        later = ahead(*([figure for leg in arm for figure in leg[REQUESTS // 2 :]] for arm in gate), rate=False)
        least, found = min(whole, later), moved(*medians)
    return Apart(least, found).clears(1.0, SPREAD)


@pytest.mark.parametrize("rate", [False, True], ids=["latency", "rate"])
@pytest.mark.parametrize(("noise", "share"), [(regimes, 0.1), (regimes, 0.5), (scattered, 0.1), (scattered, 0.3)])
@pytest.mark.parametrize("true", [0.97, 1.0])
def test_noise_of_the_host_hardly_ever_makes_equal_arms_lie_apart(
    true: float, noise: object, share: float, rate: bool
) -> None:
    """docs/verdict.md quotes it: equal arms, and a candidate that is 3 % slower."""
    rng = np.random.default_rng(7)
    assert callable(noise)
    found = [passes(noise(true, share, rng), rate=rate) for _ in range(GATES)]
    assert sum(one is True for one in found) <= 0.01 * GATES
    assert sum(one is None for one in found) < GATES / 2


@pytest.mark.parametrize("rate", [False, True], ids=["latency", "rate"])
def test_twice_as_fast_is_seen_through_a_host_that_changes_its_pace(rate: bool) -> None:
    rng = np.random.default_rng(7)
    found = [passes(regimes(2.0, 0.3, rng), rate=rate) for _ in range(400)]
    assert sum(one is not False for one in found) >= 0.95 * 400
