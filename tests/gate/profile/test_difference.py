"""The two-length difference: what cancels, what stays, what is split by shape."""

from __future__ import annotations

import pytest

from gate.profile.activity import Activity, summed
from gate.profile.difference import EQUAL, step_kernels, step_table, steps
from gate.profile.rows import TracedKernel, Wall
from tests.gate.profile.tables import fixture, wall, window, windows


def kernel(name: str, launches: int, us: float, grid: str = "") -> TracedKernel:
    return TracedKernel(name=name, grid=grid, block="", launches=launches, us=us)


def test_start_and_prefill_cancel() -> None:
    """A prefill kernel in both windows, a load in neither: what is left is 129 launches of 37.7 µs."""
    prefill = kernel("flash_prefill", 64, 9000.0)
    short = window((prefill, kernel("marlin::Marlin<8>", 8 * 129, 8 * 4861.0)), 8)
    long = window((prefill, kernel("marlin::Marlin<8>", 136 * 129, 136 * 4861.0)), 136)
    (row,) = step_kernels(short, long)
    assert (row.name, row.launches, row.us) == ("marlin::Marlin<8>", 129.0, pytest.approx(4861.0))
    assert steps(short, long) == 128


def test_a_recorded_table_comes_out_of_its_windows() -> None:
    rows = fixture("vllm-0.25.0-h200-27b-b1")["rows"]
    found = {k.name: (k.us, k.launches) for k in step_kernels(*windows(rows))}
    assert found == {name: (pytest.approx(us), n) for us, n, name in rows}


def test_what_ran_equally_often_keeps_its_time() -> None:
    """No launch of a step, but the sum stays the sum."""
    short = window((kernel("flash_prefill", 64, 9000.0),), 8)
    long = window((kernel("flash_prefill", 64, 9128.0),), 136)
    (row,) = step_kernels(short, long)
    assert (row.name, row.launches, row.us) == (EQUAL, 0.0, pytest.approx(1.0))


def test_rounds_are_steps_too() -> None:
    short = window((kernel("k", 16, 16.0),), 8, rounds=2)
    long = window((kernel("k", 272, 272.0),), 136, rounds=2)
    assert step_kernels(short, long)[0].launches == 1.0


def test_shapes_are_split_where_each_is_whole() -> None:
    """One skinny kernel on two grids: 64 gate_up and one lm_head a step."""
    made = [
        window((kernel("skinny", 64 * n, 64.0 * n, "132x1x1"), kernel("skinny", n, 9.0 * n, "264x1x1")), n)
        for n in (8, 136)
    ]
    assert {(k.name, k.launches) for k in step_kernels(*made)} == {
        ("skinny [grid 132x1x1]", 64.0),
        ("skinny [grid 264x1x1]", 1.0),
    }


def test_a_grid_that_depends_on_the_context_stays_one_kernel() -> None:
    short = window((kernel("attention", 128, 128.0, "4x1x1"),), 8)
    long = window((kernel("attention", 1000, 1000.0, "4x1x1"), kernel("attention", 1176, 1176.0, "5x1x1")), 136)
    (row,) = step_kernels(short, long)
    assert (row.name, row.launches) == ("attention", 16.0)


def test_wall_is_the_difference_of_medians() -> None:
    table = step_table("x", *windows([[10.0, 1, "k"]]), wall(9260.0), None)
    assert table.wall_us == pytest.approx(9260.0)
    uneven = Wall(short_us=(100.0, 101.0, 900.0), long_us=(1381.0, 1380.0, 1000.0))
    assert step_table("x", *windows([[10.0, 1, "k"]]), uneven, None).wall_us == pytest.approx((1380 - 101) / 128)
    assert step_table("x", *windows([[10.0, 1, "k"]]), None, None).wall_us is None


def test_a_prefill_that_takes_longer_in_one_length_is_no_step() -> None:
    """41 ms more before the first token of the long rounds: 320 µs a step, were they counted."""
    timed = Wall(
        short_us=(170.0, 180.0, 300.0),
        long_us=(1591.0, 41e3 + 1581.0, 1591.0),
        short_first_us=(100.0, 109.0, 230.0),
        long_first_us=(240.0, 41e3 + 230.0, 241.0),
    )
    assert step_table("x", *windows([[10.0, 1, "k"]]), timed, None).wall_us == pytest.approx((1351 - 70) / 128)


def test_gaps_between_tokens_stand_beside_the_wall_time() -> None:
    timed = wall(9260.0).model_copy(update={"gaps_us": (8940.0, 8950.0, 9500.0), "largest_gaps_us": (50.0, 51e3, 9e3)})
    table = step_table("x", *windows([[10.0, 1, "k"]]), timed, None)
    assert (table.gap_us, table.largest_gap_us) == (8950.0, 51e3)
    before = step_table("x", *windows([[10.0, 1, "k"]]), wall(9260.0), None)  # a record of before they were kept
    assert (before.gap_us, before.largest_gap_us) == (None, None)


def test_overlapping_intervals_count_once() -> None:
    """Two streams: 10 µs beside 6 µs, then 4 µs after a gap."""
    rows, busy_us, idle_us = summed(
        [Activity(0, 10_000, "a"), Activity(2_000, 8_000, "b"), Activity(12_000, 16_000, "a", "1x1x1", "32x1x1")]
    )
    assert (busy_us, idle_us) == (pytest.approx(14.0), pytest.approx(2.0))
    assert [(r.name, r.grid, r.launches, r.us) for r in rows] == [
        ("a", "", 1, 10.0),
        ("b", "", 1, 6.0),
        ("a", "1x1x1", 1, 4.0),
    ]


def test_a_kernel_that_waits_for_the_one_before_has_what_follows_that_one_s_end() -> None:
    """Programmatic dependent launch: b begins 8 µs before a ends and runs 3 µs beyond it. c is inside b."""
    traced = [Activity(2_000, 13_000, "b"), Activity(0, 10_000, "a"), Activity(11_000, 12_000, "c")]
    rows, busy_us, idle_us = summed(traced)
    assert {r.name: (r.us, r.own_us) for r in rows} == {"a": (10.0, 10.0), "b": (11.0, 3.0), "c": (1.0, 0.0)}
    assert (busy_us, idle_us) == (pytest.approx(13.0), pytest.approx(0.0))


def test_own_times_of_a_step_add_up_to_its_busy_time() -> None:
    """A step of a, and of b which waits for it; the prefill in both windows took 64 µs longer in the long one."""
    made = []
    for tokens, prefill in ((8, 100), (136, 164)):
        now, traced = prefill * 1_000, [Activity(0, prefill * 1_000, "prefill")]
        for _ in range(tokens):
            traced += [Activity(now, now + 4_000, "a"), Activity(now + 1_000, now + 6_000, "b")]
            now += 7_000
        rows, busy_us, idle_us = summed(traced)
        made.append(window(rows, tokens, busy_us=busy_us, idle_us=idle_us))
    table = step_table("x", made[0], made[1], None, None)
    assert {k.name: (k.us, k.own_us) for k in table.kernels} == {
        "b": (5.0, 2.0),
        "a": (4.0, 4.0),
        EQUAL: (0.5, 0.5),
    }
    assert table.own_us == table.busy_us == pytest.approx(6.5)
    assert table.idle_us == pytest.approx(1.0)  # after each step but the last, of both lengths
    old = [one.model_copy(update={"idle_us": None}) for one in made]
    assert step_table("x", old[0], made[1], None, None).idle_us is None
    assert step_table("x", made[0], old[1], None, None).idle_us is None
