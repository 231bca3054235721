"""6 Metrics: one formula per file; here the axes made of them, in report order.

An axis is what a cell is about: a metric, a statistic over the leg's samples, a unit, and which way is better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gate.metrics.e2el import e2el_ms
from gate.metrics.host_drop import host_drop_bytes
from gate.metrics.itl import itl_ms
from gate.metrics.output_throughput import output_throughput
from gate.metrics.peak_gpu import peak_gpu_bytes, reported_gpu_bytes, started_gpu_bytes
from gate.metrics.peak_host_pss import peak_host_pss_bytes
from gate.metrics.peak_host_rss import peak_host_rss_bytes
from gate.metrics.request_throughput import request_throughput
from gate.metrics.summary import MIN_REQUESTS_FOR_P90, MIN_REQUESTS_FOR_P99, STATISTICS
from gate.metrics.total_throughput import total_throughput
from gate.metrics.tpot import tpot_ms
from gate.metrics.ttft import ttft_ms
from gate.observe.rows import LegRow, RequestRow


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    """output_throughput, ttft_median_ms …: metric, statistic and unit."""
    family: str
    """The metric alone: ttft of ttft_median_ms."""
    unit: str
    direction: Literal["higher", "lower"]
    tail: bool
    """p90, p99 and max: they rest on few samples and scatter more."""
    value: Callable[[Sequence[RequestRow]], float | None]
    """The requests of one leg -> the leg's value; None when any request lacks what the formula needs."""
    sample: Callable[[RequestRow], float | None] | None = None
    """A median's: of one request. None: the axis has no figure below that of a leg."""
    sources: tuple[Callable[[LegRow], float | None], ...] = ()
    """An axis of the server instead, read from the leg's own record: the ways to know its value, best first."""
    shared: bool = False
    """What others do on the host is in it."""
    peak: bool = False
    """What a server took in one leg it may still hold in the next: the value is its largest in the repetition."""


def _of_server(name: str, *sources: Callable[[LegRow], float | None], shared: bool = False, peak: bool = False) -> Axis:
    return Axis(name, name, "bytes", "lower", False, lambda _requests: None, sources=sources, shared=shared, peak=peak)


def _per_request(
    metric: Callable[[RequestRow], float | None], statistic: str
) -> Callable[[Sequence[RequestRow]], float | None]:
    def value(requests: Sequence[RequestRow]) -> float | None:
        samples = [sample for sample in map(metric, requests) if sample is not None]
        # Survivors only would be a flattering subset: a missing sample is a missing value.
        if not samples or len(samples) < len(requests):
            return None
        if statistic == "p99" and len(requests) < MIN_REQUESTS_FOR_P99:
            return None
        return STATISTICS[statistic](samples)

    return value


def _pooled_itl(statistic: str) -> Callable[[Sequence[RequestRow]], float | None]:
    def value(requests: Sequence[RequestRow]) -> float | None:
        per_request = [itl_ms(request) for request in requests]
        if not per_request or not all(per_request):
            return None
        # Gaps of one request are not independent: the sample size of a tail is the number of requests.
        if statistic == "p99" and len(requests) < MIN_REQUESTS_FOR_P99:
            return None
        return STATISTICS[statistic]([gap for gaps in per_request for gap in gaps])

    return value


def _latency(
    family: str,
    of_statistic: Callable[[str], Callable[[Sequence[RequestRow]], float | None]],
    sample: Callable[[RequestRow], float | None] | None = None,
) -> list[Axis]:
    return [
        Axis(
            f"{family}_{statistic}_ms",
            family,
            "ms",
            "lower",
            statistic in ("p90", "p99", "max"),
            of_statistic(statistic),
            sample if statistic == "median" else None,
        )
        for statistic in ("mean", "median", "p90", "p99", "max")
    ]


AXES: tuple[Axis, ...] = (
    Axis("output_throughput", "output_throughput", "tok/s", "higher", False, output_throughput),
    Axis("total_throughput", "total_throughput", "tok/s", "higher", False, total_throughput),
    Axis("request_throughput", "request_throughput", "req/s", "higher", False, request_throughput),
    *_latency("ttft", lambda statistic: _per_request(ttft_ms, statistic), ttft_ms),
    *_latency("tpot", lambda statistic: _per_request(tpot_ms, statistic), tpot_ms),
    *_latency("itl", _pooled_itl),
    *_latency("e2el", lambda statistic: _per_request(e2el_ms, statistic), e2el_ms),
)
"""Every axis of the requests. Which of them a run reports is axes_for's."""

SERVER_AXES: tuple[Axis, ...] = (
    _of_server("peak_gpu_bytes", peak_gpu_bytes, reported_gpu_bytes, started_gpu_bytes, peak=True),
    _of_server("peak_host_rss_bytes", peak_host_rss_bytes, peak=True),
    _of_server("peak_host_pss_bytes", peak_host_pss_bytes, peak=True),
    _of_server("host_drop_bytes", host_drop_bytes, shared=True),
)
"""Memory. A run reports those that one of its legs has a value on, and those declared primary."""

AXIS_NAMES: tuple[str, ...] = tuple(axis.name for axis in (*AXES, *SERVER_AXES))


def server_axes_for(legs: Sequence[LegRow], primary: Sequence[str] = ()) -> tuple[Axis, ...]:
    """Axes that nobody asked for and nothing was measured on are left out: a run of the CPU has no GPU memory."""
    return tuple(
        axis
        for axis in SERVER_AXES
        if axis.name in primary or any(source(leg) is not None for leg in legs for source in axis.sources)
    )


def axes_for(requests_per_leg: int, primary: Sequence[str] = ()) -> tuple[Axis, ...]:
    """The axes to report: p90 from 10 requests a leg, p99 in place of max from 459, whatever was declared primary."""
    unwanted = ["_max_ms" if requests_per_leg >= MIN_REQUESTS_FOR_P99 else "_p99_ms"]
    if requests_per_leg < MIN_REQUESTS_FOR_P90:
        unwanted.append("_p90_ms")
    return tuple(axis for axis in AXES if axis.name in primary or not axis.name.endswith(tuple(unwanted)))
