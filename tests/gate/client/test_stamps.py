"""The kernel's stamps on perf_counter's clock, and what is not believed of them."""

from __future__ import annotations

import socket
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.client.stamps import (
    MAX_LOOP_SHARE,
    PAIR_NS,
    SO_TIMESTAMPNS,
    TRIES,
    Stamper,
    arrived_ns,
    both_clocks,
    kernel_ns,
    source,
)

EPOCH_NS = 1_790_000_000_000_000_000
"""CLOCK_REALTIME when perf_counter is 0."""
TIMES = st.integers(0, 10**12)
Message = tuple[int, int, bytes]


def message(
    seconds: int, rest: int, kind: int = SO_TIMESTAMPNS, level: int = socket.SOL_SOCKET
) -> tuple[int, int, bytes]:
    return level, kind, struct.pack("qq", seconds, rest)


def test_the_stamp_is_found_among_other_messages() -> None:
    assert SO_TIMESTAMPNS == 64
    others = [message(1, 1, kind=35), message(1, 1, level=6), (socket.SOL_SOCKET, SO_TIMESTAMPNS, b"short")]
    assert kernel_ns([*others, message(7, 9)], socket.SOL_SOCKET) == 7_000_000_009
    assert kernel_ns(others, socket.SOL_SOCKET) is None
    assert kernel_ns([], socket.SOL_SOCKET) is None


@given(arrived=TIMES, late=TIMES)
def test_a_stamp_is_told_on_the_other_clock_however_late_it_is_read(arrived: int, late: int) -> None:
    now = arrived + late
    assert arrived_ns(EPOCH_NS + arrived, now, EPOCH_NS + now) == arrived


def test_without_a_stamp_or_a_pair_of_clocks_nothing_is_told() -> None:
    assert arrived_ns(None, 5, 5) is None
    assert arrived_ns(5, 5, None) is None


@given(
    sent=TIMES,
    gaps=st.lists(st.tuples(st.integers(1, 10**7), st.integers(0, 10**7)), max_size=10),
    steps=st.lists(st.integers(-(10**13), 10**13) | st.just(0), min_size=10, max_size=10),
)
def test_stamps_ascend_from_the_send_to_now_wherever_the_clock_is_set(
    sent: int, gaps: list[tuple[int, int]], steps: list[int]
) -> None:
    """Each packet comes `gap` after the last read and is read `late`; meanwhile the clock is set by a step."""
    stamper, now, stamps, real = Stamper(sent), sent, [sent], EPOCH_NS
    for (gap, late), step in zip(gaps, steps, strict=False):
        came = now + gap
        kernel, now, real = real + came, came + late, real + step
        stamp = stamper.stamp(now, arrived_ns(kernel, now, real + now))
        assert stamp == (now if stamper.by_loop else came - step)
        assert stamper.by_loop == (not stamps[-1] <= came - step <= now)
        assert step != 0 or stamp == came
        stamps.append(stamp)
        assert stamp <= now
    assert all(before <= after for before, after in pairwise(stamps))


@pytest.mark.parametrize(
    ("arrived", "stamp", "by_loop"),
    [
        (None, 200, True),
        (99, 200, True),  # before the request was sent: its age is too great
        (100, 100, False),
        (150, 150, False),
        (200, 200, False),
        (201, 200, True),  # in the future: its age is below zero
    ],
)
def test_what_cannot_be_is_the_loops_time(arrived: int | None, stamp: int, by_loop: bool) -> None:
    stamper = Stamper(100)
    assert not stamper.by_loop
    assert (stamper.stamp(200, arrived), stamper.by_loop) == (stamp, by_loop)


def test_no_read_is_before_the_one_before_it_whoever_stamped_that() -> None:
    stamper = Stamper(0)
    assert stamper.stamp(100, 50) == 50
    assert (stamper.stamp(200, 50), stamper.by_loop) == (50, False)  # the rest of the same packet
    assert (stamper.stamp(300, 49), stamper.by_loop) == (300, True)
    assert (stamper.stamp(400, 299), stamper.by_loop) == (400, True)
    assert (stamper.stamp(500, 401), stamper.by_loop) == (401, False)


def clocks(widths: list[int]) -> tuple[int, int | None, int]:
    """both_clocks() where the reads of a try are so far apart; and how often perf_counter was read."""
    ticks = [tick for k, width in enumerate(widths) for tick in (1_000_000 * k, 1_000_000 * k + width)]
    read = iter(ticks)
    perf, real = both_clocks(lambda: next(read), lambda: 7)
    return perf, real, len(ticks) - len(list(read))


def test_the_clocks_are_read_again_when_something_came_in_between() -> None:
    assert (PAIR_NS, TRIES) == (10_000, 5)
    assert clocks([PAIR_NS, 0]) == (PAIR_NS, 7, 2)
    assert clocks([PAIR_NS + 1, 3, 0]) == (1_000_003, 7, 4)
    busy = [PAIR_NS + 1] * (TRIES + 1)
    assert clocks(busy) == (1_000_000 * (TRIES - 1) + PAIR_NS + 1, None, 2 * TRIES)


def test_the_clocks_are_those_of_this_machine() -> None:
    first, second = both_clocks(), both_clocks()
    assert second[0] >= first[0]
    assert first[1] is not None


def test_one_read_in_a_thousand_may_have_the_loops_time() -> None:
    assert source(0, 0) is None
    assert source(1, 0) == "kernel"
    assert source(1000, 1) == "kernel"
    assert source(999, 1) == "loop"
    assert source(2000, 2) == "kernel"
    assert source(2000, 3) == "loop"
    assert MAX_LOOP_SHARE < 1 / 128
