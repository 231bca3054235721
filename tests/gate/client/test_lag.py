from __future__ import annotations

import asyncio
import contextlib
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


async def test_the_nearest_rank_of_99_in_100() -> None:
    sampler = LagSampler()
    sampler.lags_ns = [k * 1_000_000 for k in range(101, 1, -1)]
    assert sampler.p99_ms() == 100.0
    sampler.lags_ns = sampler.lags_ns[:99]
    assert sampler.p99_ms() == 101.0


def timers() -> int:
    """Open ones of this process. Its other files come and go with other tests' garbage."""
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found += path.readlink() == Path("anon_inode:[timerfd]")
    return found


async def test_no_tick_is_no_number_and_stop_closes_the_timer() -> None:
    before = timers()
    sampler = LagSampler()
    sampler.start()
    assert timers() == before + 1
    sampler.stop()
    sampler.stop()
    assert sampler.p99_ms() is None
    assert timers() == before
