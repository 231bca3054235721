"""What happened to the host between two moments."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from gate.observe import host

SECOND_NS = 1_000_000_000


def test_a_quiet_moment_passes_without_an_event() -> None:
    before = host.read()
    after = host.read()
    assert before.boot_id == after.boot_id is not None
    assert before.available_bytes > 0
    passed = host.passed(before, after)
    assert passed.suspended_ms == pytest.approx(0, abs=50)
    assert passed.oom_kills in (0, None)


def test_sleep_and_clock_steps_are_told_apart() -> None:
    before = host.read()

    def later(wall_s: int, monotonic_s: int, boot_s: int) -> host.Passed:
        after = dataclasses.replace(
            before,
            wall_ns=before.wall_ns + wall_s * SECOND_NS,
            monotonic_ns=before.monotonic_ns + monotonic_s * SECOND_NS,
            boottime_ns=before.boottime_ns + boot_s * SECOND_NS,
        )
        return host.passed(before, after)

    slept = later(wall_s=100, monotonic_s=10, boot_s=100)
    assert (slept.suspended_ms, slept.wall_step_ms) == (90_000, 0)
    set_back = later(wall_s=-3590, monotonic_s=10, boot_s=10)
    assert (set_back.suspended_ms, set_back.wall_step_ms) == (0, -3_600_000)


def test_swap_and_kills_are_counted_from_vmstat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = tmp_path / "vmstat"
    monkeypatch.setattr(host, "VMSTAT", counts)
    counts.write_text("nr_free_pages 7\npswpin 1\npswpout 2\noom_kill 3\n")
    before = host.read()
    counts.write_text("nr_free_pages 7\npswpin 2\npswpout 12\noom_kill 4\n")
    passed = host.passed(before, host.read())
    page = os.sysconf("SC_PAGE_SIZE")
    assert (passed.swapped_bytes, passed.oom_kills) == (11 * page, 1)


def test_what_the_kernel_does_not_count_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "VMSTAT", tmp_path / "none")
    monkeypatch.setattr(host, "BOOT_ID", tmp_path / "none")
    state = host.read()
    assert (state.boot_id, state.swapped_bytes, state.oom_kills) == (None, None, None)
    passed = host.passed(state, state)
    assert (passed.swapped_bytes, passed.oom_kills) == (None, None)
