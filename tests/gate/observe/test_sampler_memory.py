"""Memory beside a leg: PSS before and after, and the least that was available; None where there is no server."""

from __future__ import annotations

import os

import pytest

from gate.observe import memory
from gate.observe.sampler import Sampler


def test_pss_is_read_before_and_after_and_its_larger_reading_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([700, 300])
    monkeypatch.setattr(memory, "pss_bytes", lambda _tree: next(readings))
    with Sampler("leg", os.getpid()) as sampler:
        pass
    assert sampler.peak_pss_bytes == 700
    assert [row.value for row in sampler.rows if row.name == "server_pss_bytes"] == [700, 300]


def test_the_least_available_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([900, 400])
    monkeypatch.setattr(memory, "available_bytes", lambda: next(readings, 800))
    with Sampler("leg", None) as sampler:
        pass
    assert sampler.least_available_bytes == 400
    assert sampler.peak_pss_bytes is None
