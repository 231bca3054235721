"""4 The state of the host at one moment, and what happened between two: sleep, clock steps, swapping, OOM kills."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from gate.observe import gpu, memory

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
VMSTAT = Path("/proc/vmstat")


@dataclass(frozen=True, slots=True)
class HostState:
    """What could not be read is None."""

    boot_id: str | None
    wall_ns: int
    monotonic_ns: int
    boottime_ns: int
    """As monotonic_ns, but it goes on while the machine sleeps."""
    swapped_bytes: int | None
    """Read from and written to swap since boot."""
    oom_kills: int | None
    """Since boot."""
    available_bytes: int
    gpu_used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Passed:
    """Differences of two states; None where the machine was restarted in between or does not count."""

    suspended_ms: float | None
    wall_step_ms: float | None
    swapped_bytes: int | None
    oom_kills: int | None


def read(gpus: tuple[str, ...] | None = None) -> HostState:
    """gpus: UUIDs whose memory counts; None: all."""
    counts = _vmstat()
    pages = [counts[name] for name in ("pswpin", "pswpout") if name in counts]
    return HostState(
        boot_id=BOOT_ID.read_text(encoding="ascii").strip() if BOOT_ID.is_file() else None,
        wall_ns=time.time_ns(),
        monotonic_ns=time.monotonic_ns(),
        boottime_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        swapped_bytes=sum(pages) * os.sysconf("SC_PAGE_SIZE") if pages else None,
        oom_kills=counts.get("oom_kill"),
        available_bytes=memory.available_bytes(),
        gpu_used_bytes=gpu.used_bytes(gpus),
    )


def passed(before: HostState, after: HostState) -> Passed:
    slept_ns = (after.boottime_ns - before.boottime_ns) - (after.monotonic_ns - before.monotonic_ns)
    gained_ns = (after.wall_ns - before.wall_ns) - (after.boottime_ns - before.boottime_ns)
    return Passed(
        suspended_ms=slept_ns / 1e6,
        wall_step_ms=gained_ns / 1e6,
        swapped_bytes=_difference(after.swapped_bytes, before.swapped_bytes),
        oom_kills=_difference(after.oom_kills, before.oom_kills),
    )


def _vmstat() -> dict[str, int]:
    """/proc/vmstat; psutil's swap counters come from there too, but it has none for OOM kills."""
    try:
        lines = VMSTAT.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines) if value.isdigit()}


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before
