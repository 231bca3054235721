"""4 Open-loop arrivals: an absolute schedule, and the pacer that waits for it.

The schedule is fixed before the first send and latencies can be taken from it, so a slow server delays its answers and
never its load (no coordinated omission). The pacer paces each gap anew from the schedule, so lateness never adds up.
"""

from __future__ import annotations

import asyncio
import time
from typing import Literal

import numpy as np
from asyncio_throttle.throttler import Throttler

Arrival = Literal["closed", "poisson", "constant"]

POLL_S = 0.001
"""The throttler polls; 1 ms is the event loop's own timer resolution and costs under 1 % of a core."""


def offsets_ns(arrival: Arrival, count: int, rate: float, seed: int) -> tuple[int, ...]:
    """When each of `count` requests is due, after the first; `rate` is requests per second."""
    if arrival == "constant":
        return tuple(round(i * 1e9 / rate) for i in range(count))
    gaps = np.random.default_rng(seed).exponential(1e9 / rate, size=count)
    return tuple(int(t) for t in np.cumsum(gaps) - gaps[:1])


class Pacer:
    """Lets one arrival pass at each due time."""

    def __init__(self) -> None:
        self._throttler = Throttler(rate_limit=1, period=0.0, retry_interval=POLL_S)
        self._last_ns = time.perf_counter_ns()

    async def until(self, due_ns: int) -> None:
        """Return at `due_ns` (perf_counter_ns) or, when it has passed, at once."""
        # The throttler counts its period from the arrival it let pass last.
        self._throttler.period = (due_ns - self._last_ns) / 1e9
        await self._throttler.acquire()  # type: ignore[no-untyped-call]
        # Its stamp of the last arrival is earlier than ours: by milliseconds where the thread lost its core in between.
        while time.perf_counter_ns() < due_ns:  # noqa: ASYNC110 - no event tells that a clock has come so far
            await asyncio.sleep(POLL_S)
        self._last_ns = time.perf_counter_ns()
