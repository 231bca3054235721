"""6 Metrics: one formula per file; here the axes made of them, in report order.

An axis is what a cell is about: a metric, a statistic over the leg's samples, a unit, and which way is better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gate.metrics.e2el import e2el_ms
from gate.metrics.itl import itl_ms
from gate.metrics.output_throughput import output_throughput
from gate.metrics.request_throughput import request_throughput
from gate.metrics.summary import MIN_REQUESTS_FOR_P90, MIN_REQUESTS_FOR_P99, STATISTICS
from gate.metrics.total_throughput import total_throughput
from gate.metrics.tpot import tpot_ms
from gate.metrics.ttft import ttft_ms
from gate.observe.rows import RequestRow


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


def _latency(family: str, of_statistic: Callable[[str], Callable[[Sequence[RequestRow]], float | None]]) -> list[Axis]:
    return [
        Axis(
            f"{family}_{statistic}_ms",
            family,
            "ms",
            "lower",
            statistic in ("p90", "p99", "max"),
            of_statistic(statistic),
        )
        for statistic in ("mean", "median", "p90", "p99", "max")
    ]


AXES: tuple[Axis, ...] = (
    Axis("output_throughput", "output_throughput", "tok/s", "higher", False, output_throughput),
    Axis("total_throughput", "total_throughput", "tok/s", "higher", False, total_throughput),
    Axis("request_throughput", "request_throughput", "req/s", "higher", False, request_throughput),
    *_latency("ttft", lambda statistic: _per_request(ttft_ms, statistic)),
    *_latency("tpot", lambda statistic: _per_request(tpot_ms, statistic)),
    *_latency("itl", _pooled_itl),
    *_latency("e2el", lambda statistic: _per_request(e2el_ms, statistic)),
)
"""Every axis there is. Which of them a run reports is axes_for's."""

AXIS_NAMES: tuple[str, ...] = tuple(axis.name for axis in AXES)


def axes_for(requests_per_leg: int, primary: Sequence[str] = ()) -> tuple[Axis, ...]:
    """The axes to report: p90 from 10 requests a leg, p99 in place of max from 459, whatever was declared primary."""
    unwanted = ["_max_ms" if requests_per_leg >= MIN_REQUESTS_FOR_P99 else "_p99_ms"]
    if requests_per_leg < MIN_REQUESTS_FOR_P90:
        unwanted.append("_p90_ms")
    return tuple(axis for axis in AXES if axis.name in primary or not axis.name.endswith(tuple(unwanted)))
