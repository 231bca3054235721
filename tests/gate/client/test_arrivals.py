from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from gate.client.arrivals import Pacer, offsets_ns


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


async def test_pacer_lets_nothing_pass_early_and_the_overdue_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def noting(delay: float) -> None:
        waits.append(delay)
        await sleep(delay)

    pacer = Pacer()
    start = time.perf_counter_ns()
    monkeypatch.setattr(asyncio, "sleep", noting)
    for due in (start, start + 5_000_000):
        await pacer.until(due)
        assert time.perf_counter_ns() >= due
    assert waits
    waits.clear()
    await pacer.until(start)
    assert waits == []
