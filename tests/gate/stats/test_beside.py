"""What stands beside a ratio: modes, the order effect, cycles. Closed forms and false alarms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.report.model import Direction
from gate.stats import modes, order
from gate.stats.cycles import in_cycles, vanishes
from gate.stats.interval import Interval

Ends = tuple[float, float, float]
"""Mean, low and high end."""
FLOATS = st.floats(-0.1, 0.1)


class TestModes:
    def test_two_groups_are_found_and_told(self) -> None:
        values = [math.log(v) for v in (100.0, 103.1, 100.1, 103.0, 100.2, 103.2)]
        assert modes.note(values) == "two groups 3.0 % apart (3 and 3 legs)"

    @pytest.mark.parametrize(
        "values", [[], [1.0], [0.0, 1.0], [0.0, 0.0, 1.0], [1.0] * 6, [0.0, 0.01, 0.02, 0.03], [0.0, 0.0, 0.0, 1.0]]
    )
    def test_too_few_equal_even_and_one_odd_leg_are_not(self, values: list[float]) -> None:
        assert modes.note(values) is None

    def test_two_constants_are_two_groups(self) -> None:
        found = modes.groups([1.0, 2.0, 1.0, 2.0])
        assert found is not None
        assert (found.low, found.high, found.separation) == ((1.0, 1.0), (2.0, 2.0), math.inf)

    @pytest.mark.parametrize("odd", [1.0, 3.0], ids=["lowest", "highest"])
    @pytest.mark.parametrize("legs", [4, 24, 34, 48, 96])
    def test_one_odd_leg_is_no_mode_of_however_many(self, legs: int, odd: float) -> None:
        assert modes.groups([odd, *[2.0] * (legs - 1)]) is None
        drifting = [2.0 + 0.001 * k for k in range(legs - 1)]
        assert modes.groups([odd + 1000 * (odd - 2.0), *drifting]) is None

    @pytest.mark.parametrize("side", [1, -1])
    @pytest.mark.parametrize(("legs", "odd", "two"), [(48, 4, False), (48, 5, True), (40, 4, True), (21, 2, False)])
    def test_a_second_mode_has_a_tenth_of_the_legs(self, legs: int, odd: int, two: bool, side: int) -> None:
        """Fewer are not filled up with a neighbour: four of 48 and the next one have a D of 6.0, above the limit."""
        values = [side * (2.0 + k * 1e-6) for k in range(legs - odd)] + [side * (3.0 + k * 1e-6) for k in range(odd)]
        found = modes.groups(values)
        assert (found is not None) == two
        assert found is None or sorted(map(len, (found.low, found.high))) == [odd, legs - odd]

    def test_two_modes_are_seen_beside_an_odd_leg(self) -> None:
        found = modes.groups([*(1.0 + k * 0.01 for k in range(24)), *(3.0 + k * 0.01 for k in range(23)), 4.5])
        assert found is not None
        assert (len(found.low), len(found.high)) == (24, 24)

    def test_at_the_limit_itself_there_is_one_group(self, monkeypatch: pytest.MonkeyPatch) -> None:
        values = [0.0, 1.0, 5.0, 6.0]
        monkeypatch.setitem(modes.D_LIMITS, 4, 5 / math.sqrt(0.5))
        assert modes.groups(values) is None
        monkeypatch.setitem(modes.D_LIMITS, 4, math.nextafter(5 / math.sqrt(0.5), 0.0))
        assert modes.groups(values) is not None

    @pytest.mark.parametrize("legs", [4, 5, 6, 8, 10, 24, 48])
    def test_one_false_alarm_in_a_hundred(self, legs: int) -> None:
        rng = np.random.default_rng(3)
        alarms = sum(modes.groups(rng.normal(size=legs).tolist()) is not None for _ in range(2000))
        assert 0.002 <= alarms / 2000 <= 0.02

    def test_the_limit_falls_with_the_number_of_legs(self) -> None:
        limits = [modes.limit(legs) for legs in range(4, 60)]
        assert limits == sorted(limits, reverse=True)
        assert modes.limit(7) == pytest.approx(8.0, abs=0.2)
        assert modes.limit(47) > modes.limit(48)

    @pytest.mark.parametrize(
        ("legs", "expected"),
        [(4, 17.1), (5, 12.1), (6, 9.3), (8, 6.9), (16, 4.8), (24, 4.2), (48, 3.7), (49, 3.7)],
    )
    def test_the_simulated_limits_are_taken_as_they_are(self, legs: int, expected: float) -> None:
        assert modes.limit(legs) == expected


class TestOrder:
    @given(FLOATS, FLOATS)
    def test_arm_and_order_are_told_apart(self, arm: float, first: float) -> None:
        assert order.effect([arm + first] * 2, [arm - first]) == pytest.approx(first, abs=1e-12)

    @given(st.lists(FLOATS, min_size=1, max_size=4), st.lists(FLOATS, min_size=1, max_size=4))
    def test_swapping_the_arms_changes_nothing(self, ours: list[float], theirs: list[float]) -> None:
        """The other arm's log ratios are the negatives, and who ran first changes sides."""
        swapped = order.effect([-d for d in theirs], [-d for d in ours])
        assert order.effect(ours, theirs) == pytest.approx(swapped, abs=1e-12)

    def test_one_order_alone_tells_nothing(self) -> None:
        assert order.effect([0.1], []) is None
        assert order.effect([], [0.1]) is None


class TestCycles:
    @pytest.mark.parametrize(("direction", "expected"), [("lower", 3.0), ("higher", 2.0 / 1.5)])
    def test_latency_times_and_throughput_over_the_clock(self, direction: Direction, expected: float) -> None:
        assert in_cycles([2.0, None, 2.0], [1.5, 1.5, None], direction) == (pytest.approx(expected), None, None)

    def test_a_difference_vanishes_only_where_it_was_and_is_not(self) -> None:
        def around(mean: float, half: float = 0.005) -> Interval:
            return Interval(mean, mean - half, mean + half, half / 2, 6)

        assert vanishes(around(-0.009), around(0.0))
        assert vanishes(around(0.009), around(0.004))
        assert not vanishes(around(0.009), around(0.0046))
        assert not vanishes(around(0.004), around(0.0))
        assert not vanishes(around(0.02), around(0.006))

    @pytest.mark.parametrize(
        ("time", "cycles", "gone"),
        [
            ((0.008, 0.004, 0.012), (0.002, 0.0, 0.004), True),
            ((0.008, 0.004, 0.012), (-0.002, -0.004, 0.0), True),
            ((0.008, 0.004, 0.012), (0.004, -0.001, 0.009), True),
            ((0.008, 0.004, 0.012), (0.0041, -0.001, 0.009), False),
            ((0.004, 0.0, 0.008), (0.0, -0.004, 0.004), False),
            ((-0.004, -0.008, 0.0), (0.0, -0.004, 0.004), False),
        ],
        ids=["low end at 0", "high end at 0", "half of it", "more than half", "0 is in time", "0 is in time, below"],
    )
    def test_ends_count_as_inside(self, time: Ends, cycles: Ends, gone: bool) -> None:
        def interval(ends: Ends) -> Interval:
            return Interval(*ends, 0.002, 6)

        assert vanishes(interval(time), interval(cycles)) is gone
