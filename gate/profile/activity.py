"""4 What every trace comes down to: intervals with a name and a shape, summed by kernel, and their union."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gate.profile.rows import Level, TracedKernel


@dataclass(frozen=True, slots=True)
class Activity:
    """One kernel, copy or fill on the device, in nanoseconds."""

    start_ns: float
    end_ns: float
    name: str
    grid: str = ""
    block: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """A window's trace, whichever tool wrote it."""

    kernels: tuple[TracedKernel, ...]
    level: Level
    busy_us: float | None
    tool: str
    device: str | None = None
    bandwidth_bytes_per_s: float | None = None
    decode_steps: int | None = None
    """NVTX ranges of decode steps; None where the server marks none."""


def summed(activities: Iterable[Activity]) -> tuple[tuple[TracedKernel, ...], float]:
    """(one row a name and shape, the longest first; the union of all intervals in µs)."""
    launches: dict[tuple[str, str, str], int] = defaultdict(int)
    total_ns: dict[tuple[str, str, str], float] = defaultdict(float)
    starts, ends = [], []
    for one in activities:
        key = one.name, one.grid, one.block
        launches[key] += 1
        total_ns[key] += one.end_ns - one.start_ns
        starts.append(one.start_ns)
        ends.append(one.end_ns)
    rows = [
        TracedKernel(name=key[0], grid=key[1], block=key[2], launches=launches[key], us=total_ns[key] / 1e3)
        for key in sorted(launches, key=lambda key: (-total_ns[key], key))
    ]
    return tuple(rows), union(np.array(starts, np.float64), np.array(ends, np.float64)) / 1e3


def union(starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]) -> float:
    """Length of the union of intervals: overlapping ones count once."""
    if not len(starts):
        return 0.0
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    covered = np.concatenate(([starts[0]], np.maximum.accumulate(ends)[:-1]))
    return float(np.maximum(ends - np.maximum(starts, covered), 0).sum())


def shape(x: object, y: object, z: object) -> str:
    """Empty where any of the three is unknown."""
    return "" if None in (x, y, z) else f"{x}x{y}x{z}"
