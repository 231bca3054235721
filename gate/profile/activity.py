"""4 What every trace comes down to: intervals with a name and a shape, summed by kernel, and their union."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

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
    idle_us: float | None = None


class Sums(NamedTuple):
    kernels: tuple[TracedKernel, ...]
    """One row a name and shape, the longest first."""
    busy_us: float
    """The union of all intervals, which their own_us add up to."""
    idle_us: float
    """Between the first one's start and the last one's end, the rest."""


def summed(activities: Iterable[Activity]) -> Sums:
    keys: dict[tuple[str, str, str], int] = {}
    which, starts, ends = [], [], []
    for one in activities:
        which.append(keys.setdefault((one.name, one.grid, one.block), len(keys)))
        starts.append(one.start_ns)
        ends.append(one.end_ns)
    begun, ended, rows = np.array(starts, np.float64), np.array(ends, np.float64), np.array(which, np.int64)
    alone = own(begun, ended)
    launches = np.bincount(rows, minlength=len(keys))
    total_us, own_us = (np.bincount(rows, ns, len(keys)) / 1e3 for ns in (ended - begun, alone))
    made = [
        TracedKernel(
            name=key[0],
            grid=key[1],
            block=key[2],
            launches=int(launches[row]),
            us=float(total_us[row]),
            own_us=float(own_us[row]),
        )
        for key, row in sorted(keys.items(), key=lambda item: (-total_us[item[1]], item[0]))
    ]
    busy_ns = float(alone.sum())
    span_ns = float(ended.max() - begun.min()) if made else 0.0
    return Sums(tuple(made), busy_ns / 1e3, (span_ns - busy_ns) / 1e3)


def own(starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of each interval, the part that no interval which began before it covers: they add up to the union.

    Under programmatic dependent launch a kernel begins early and waits for the one before: what is its own is the time
    from that one's end to its own.
    """
    order = np.argsort(starts, kind="stable")
    begun, ended = starts[order], ends[order]
    covered = np.concatenate((begun[:1], np.maximum.accumulate(ended)[:-1]))
    made = np.empty_like(starts)
    made[order] = np.maximum(ended - np.maximum(begun, covered), 0)
    return made


def shape(x: object, y: object, z: object) -> str:
    """Empty where any of the three is unknown."""
    return "" if None in (x, y, z) else f"{x}x{y}x{z}"
