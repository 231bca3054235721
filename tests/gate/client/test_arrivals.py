from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace

import pytest
from asyncio_throttle import throttler

from gate.client import arrivals
from gate.client.arrivals import POLL_S, Pacer, offsets_ns


def test_constant_arrivals_do_not_drift() -> None:
    offsets = offsets_ns("constant", 4, 3.0, seed=0)
    assert offsets == (0, 333_333_333, 666_666_667, 1_000_000_000)


def test_poisson_gaps_are_exponential_with_the_mean_of_the_rate() -> None:
    offsets = offsets_ns("poisson", 20_001, 50.0, seed=7)
    gaps = [(b - a) / 1e9 for a, b in pairwise(offsets)]
    mean = sum(gaps) / len(gaps)
    assert offsets[0] == 0
    assert mean == pytest.approx(0.02, rel=0.03)
    # An exponential's standard deviation is its mean, and 1 - 1/e of its values are below it.
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.05)
    assert sum(gap < mean for gap in gaps) / len(gaps) == pytest.approx(0.632, abs=0.02)


def test_schedule_depends_on_the_seed_only() -> None:
    assert offsets_ns("poisson", 9, 5.0, seed=1) == offsets_ns("poisson", 9, 5.0, seed=1)
    assert offsets_ns("poisson", 9, 5.0, seed=1) != offsets_ns("poisson", 9, 5.0, seed=2)


class Clock:
    """For the pacer and the throttler below it: goes on only while one of them sleeps, or is made to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 10**12
        self.waits: list[float] = []
        monkeypatch.setattr(arrivals, "time", SimpleNamespace(perf_counter_ns=lambda: self.now_ns))
        monkeypatch.setattr(throttler, "time", SimpleNamespace(monotonic=lambda: self.now_ns / 1e9))
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, delay: float) -> None:
        self.waits.append(delay)
        self.now_ns += round(delay * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def test_pacer_lets_nothing_pass_early_and_the_overdue_at_once(clock: Clock) -> None:
    pacer = Pacer()
    start = clock.now_ns
    for due in (start, start + 5_000_000):
        await pacer.until(due)
        assert due <= clock.now_ns <= due + POLL_S * 1e9
    assert clock.waits
    clock.waits.clear()
    await pacer.until(start)
    assert clock.waits == []


async def test_pacer_that_was_kept_from_its_core_lets_nothing_pass_early_either(clock: Clock) -> None:
    """Between the throttler's stamp of an arrival and the pacer's, which the next gap is counted from."""
    pacer = Pacer()
    acquire = pacer._throttler.acquire

    async def kept_after() -> None:
        await acquire()
        clock.now_ns += 20_000_000

    pacer._throttler.acquire = kept_after
    await pacer.until(clock.now_ns)
    pacer._throttler.acquire = acquire
    due = clock.now_ns + 30_000_000
    await pacer.until(due)
    assert due <= clock.now_ns <= due + POLL_S * 1e9
