"""6 Cycles beside time: a leg's value as it would be at one clock.

    latency · f        throughput / f        f the mean SM clock of the leg, MHz

Two arms that differ in time and not in cycles ran at different clocks; nothing is said about their code. Memory has a
clock of its own, so that a step bound by memory differs less in time than its SM clocks do: cycles can exaggerate.
"""

from __future__ import annotations

from collections.abc import Sequence

from gate.report.model import Direction
from gate.stats.interval import Interval


def in_cycles(
    values: Sequence[float | None], clocks_mhz: Sequence[float | None], direction: Direction
) -> tuple[float | None, ...]:
    """Of each leg; None where its value or its clock is not known. Units: 1000 cycles, or tokens per 10⁶ cycles.

    Raises:
        ValueError: different numbers of values and clocks.
    """
    return tuple(
        None if value is None or not clock else (value / clock if direction == "higher" else value * clock)
        for value, clock in zip(values, clocks_mhz, strict=True)
    )


def vanishes(time: Interval, cycles: Interval) -> bool:
    """Whether a difference that is there in time beyond doubt is, for the greater part, gone in cycles."""
    there = time.low > 0 or time.high < 0
    gone = cycles.low <= 0 <= cycles.high and abs(cycles.mean) <= abs(time.mean) / 2
    return there and gone
