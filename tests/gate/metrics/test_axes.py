"""The table of axes as it is written in docs/metrics.md, and each formula at its limits."""

from __future__ import annotations

from typing import Any

import pytest

from gate.metrics import AXES, SERVER_AXES, Axis
from gate.metrics.output_throughput import duration_s
from gate.metrics.summary import MIN_REQUESTS_FOR_P99, STATISTICS, percentile
from gate.metrics.total_throughput import total_throughput
from gate.metrics.tpot import tpot_ms
from gate.observe.rows import RequestRow

MS = 1_000_000
LATENCIES = [
    (f"{family}_{statistic}_ms", family, "ms", "lower", tail, False)
    for family in ("ttft", "tpot", "itl", "e2el")
    for statistic, tail in (("mean", False), ("median", False), ("p90", True), ("p99", True), ("max", True))
]
THROUGHPUTS = [
    ("output_throughput", "output_throughput", "tok/s", "higher", False, False),
    ("total_throughput", "total_throughput", "tok/s", "higher", False, False),
    ("request_throughput", "request_throughput", "req/s", "higher", False, False),
]
MEMORY = [
    ("peak_gpu_bytes", "peak_gpu_bytes", "bytes", "lower", False, False),
    ("peak_host_rss_bytes", "peak_host_rss_bytes", "bytes", "lower", False, False),
    ("peak_host_pss_bytes", "peak_host_pss_bytes", "bytes", "lower", False, False),
    ("host_drop_bytes", "host_drop_bytes", "bytes", "lower", False, True),
]
NAMED = {axis.name: axis for axis in AXES}


def told(axis: Axis) -> tuple[str, str, str, str, bool, bool]:
    return axis.name, axis.family, axis.unit, axis.direction, axis.tail, axis.shared


def test_the_table_of_axes() -> None:
    assert [told(axis) for axis in AXES] == THROUGHPUTS + LATENCIES
    assert [told(axis) for axis in SERVER_AXES] == MEMORY


@pytest.fixture
def rows(build: Any) -> tuple[RequestRow, ...]:
    """Requests of 50 ms to the first token and 10 ms a token, eight tokens, back to back."""
    run = build.run(protocol={"concurrency": (1,), "repetitions": 1})
    found: tuple[RequestRow, ...] = run.requests
    return tuple(row for row in found if row.arm == "candidate")


@pytest.mark.parametrize(("family", "expected"), [("ttft", 50.0), ("tpot", 10.0), ("itl", 10.0), ("e2el", 120.0)])
def test_every_statistic_of_equal_requests_is_their_value(
    rows: tuple[RequestRow, ...], family: str, expected: float
) -> None:
    for statistic in ("mean", "median", "p90", "max"):
        assert NAMED[f"{family}_{statistic}_ms"].value(rows) == pytest.approx(expected)


@pytest.mark.parametrize("family", ["ttft", "tpot", "itl", "e2el"])
def test_a_p99_needs_its_number_of_requests_exactly(rows: tuple[RequestRow, ...], family: str) -> None:
    axis, enough = NAMED[f"{family}_p99_ms"], (rows[0],) * MIN_REQUESTS_FOR_P99
    assert axis.value(enough) is not None
    assert axis.value(enough[1:]) is None


def test_p90_is_the_ninetieth_of_a_hundred() -> None:
    assert STATISTICS["p90"](range(1, 101)) == 90
    assert STATISTICS["p99"](range(1, 101)) == 99
    assert percentile([3.0, 1.0, 2.0], 0.0) == 1.0


def test_the_shortest_leg_has_a_duration_and_an_empty_moment_none(rows: tuple[RequestRow, ...]) -> None:
    row = rows[0].model_copy(update={"sent_ns": 0, "last_token_ns": 1})
    assert duration_s([row]) == 1e-9
    assert duration_s([row.model_copy(update={"last_token_ns": 0})]) is None


@pytest.mark.parametrize("missing", ["prompt_tokens", "completion_tokens"])
def test_a_request_without_its_count_has_no_total(rows: tuple[RequestRow, ...], missing: str) -> None:
    assert total_throughput(rows) is not None
    assert total_throughput([*rows[1:], rows[0].model_copy(update={missing: None})]) is None


@pytest.mark.parametrize("missing", ["first_token_ns", "last_token_ns", "completion_tokens"])
def test_a_request_without_a_stamp_has_no_tpot(rows: tuple[RequestRow, ...], missing: str) -> None:
    assert tpot_ms(rows[0]) == pytest.approx(10.0)
    assert tpot_ms(rows[0].model_copy(update={missing: None})) is None
