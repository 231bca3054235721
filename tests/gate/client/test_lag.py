from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from pathlib import Path

from gate.client.lag import PERIOD_NS, LagSampler


async def test_blocked_loop_shows_as_lag_of_every_missed_tick() -> None:
    sampler = LagSampler()
    sampler.start()
    time.sleep(6 * PERIOD_NS / 1e9)  # noqa: ASYNC251 - blocking the loop is the case
    for _ in range(2):  # the loop finds the timer readable, then runs its callback
        await asyncio.sleep(0)
    sampler.stop()
    lags = sampler.lags_ns
    assert len(lags) >= 5
    assert all(a - b == PERIOD_NS for a, b in pairwise(lags))
    assert sampler.p99_ms() == lags[0] / 1e6


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


async def test_no_tick_is_no_number_and_stop_closes_the_timer() -> None:
    before = open_files()
    sampler = LagSampler()
    sampler.start()
    sampler.stop()
    sampler.stop()
    assert sampler.p99_ms() is None
    assert open_files() == before
