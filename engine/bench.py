"""Time one op's kernels on this GPU: check first, then microseconds, GB/s and the share of its read roof.

A case whose check fails is never timed. Times are medians over replays of a CUDA graph that rotates among copies of
what the kernel reads, more than the L2 holds, so that every byte comes from memory as it does in a decoding step.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.errors import PreconditionError, UsageError
from engine.roofs import roof_of

COLD_BYTES = 250_000_000
"""Read between two uses of the same copy: four times an H200's L2."""
MAX_COPIES = 64
REPLAYS = 25


class BenchError(PreconditionError):
    """No GPU, or a check that failed: nothing was timed."""


@dataclass(frozen=True, slots=True)
class Case:
    """One launch at one batch size."""

    name: str
    batch: int
    nbytes: int
    """Bytes the launch must read and write: each input once, each output once."""
    run: Callable[[int], object]
    """Launch on copy i of the inputs, on the current stream."""
    copies: int
    error: float
    """Of the check, made when the case was built."""
    limit: float

    @property
    def passed(self) -> bool:
        return self.error < self.limit  # False for NaN


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    batch: int
    nbytes: int
    time_us: float
    error: float
    roof_bytes_per_s: float | None = None
    """Of the device; None where it has not been measured."""

    @property
    def gbps(self) -> float:
        return self.nbytes / self.time_us / 1e3

    @property
    def roof_share(self) -> float | None:
        return None if self.roof_bytes_per_s is None else self.gbps * 1e9 / self.roof_bytes_per_s


def copies_for(nbytes: int) -> int:
    """How many copies of nbytes make every use cold."""
    return max(2, min(MAX_COPIES, -(-COLD_BYTES // nbytes)))


def measure(case: Case) -> Row:
    """Raises BenchError, with the numbers, for a case whose check failed."""
    if not case.passed:
        raise BenchError(
            f"{case.name}, batch {case.batch}: found error {case.error:.3g}, expected < {case.limit:.3g}; not timed"
        )
    launches = max(case.copies, 8)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for i in range(case.copies):
            case.run(i)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            outputs = [case.run(i % case.copies) for i in range(launches)]
        times_us = [_replay_us(graph, stream) / launches for _ in range(REPLAYS + 3)][3:]
    del outputs  # the graph writes to them until here
    roof = roof_of(torch.device("cuda"))
    return Row(case.name, case.batch, case.nbytes, statistics.median(times_us), case.error, roof)


def _replay_us(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record(stream)
    graph.replay()
    end.record(stream)
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def bench(op: str, batches: Sequence[int] = (1, 8, 32)) -> list[Row]:
    """Rows of one op at the 27B's shapes.

    Raises UsageError for an unknown op, BenchError on a machine without CUDA or for a check that failed.
    """
    from engine.bench_cases import CASES

    if op not in CASES:
        raise UsageError(f"found op {op!r}; expected one of {', '.join(CASES)}")
    if not torch.cuda.is_available():
        raise BenchError("found no CUDA device; expected one: kernels cannot be timed elsewhere")
    return [measure(case) for batch in batches for case in CASES[op](batch, torch.device("cuda"))]


def table(rows: Sequence[Row]) -> str:
    """Plain text, one row per case."""
    width = max([28, *(len(row.name) for row in rows)])
    lines = [f"{'case':<{width}}{'batch':>6}{'µs':>9}{'MB':>9}{'GB/s':>8}{'roof':>7}{'error':>10}"]
    for row in rows:
        share = "–" if row.roof_share is None else f"{row.roof_share:.0%}"
        lines.append(
            f"{row.name:<{width}}{row.batch:>6}{row.time_us:>9.2f}{row.nbytes / 1e6:>9.2f}{row.gbps:>8.0f}{share:>7}"
            f"{row.error:>10.1e}"
        )
    return "\n".join(lines)
