"""Closed forms: every expected figure can be checked with a pencil."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.metrics import AXES, AXIS_NAMES, SERVER_AXES, axes_for
from gate.metrics.e2el import e2el_ms
from gate.metrics.itl import itl_ms, reads
from gate.metrics.output_throughput import duration_s, output_throughput
from gate.metrics.request_throughput import request_throughput
from gate.metrics.summary import MIN_REQUESTS_FOR_P99, percentile
from gate.metrics.total_throughput import total_throughput
from gate.metrics.tpot import tpot_ms
from gate.metrics.ttft import ttft_ms
from gate.observe.rows import RequestRow

MS = 1_000_000


def request(
    times_ms: tuple[float, ...] = (100, 120, 140), tokens: tuple[int, ...] | None = None, **over: object
) -> RequestRow:
    tokens = tokens if tokens is not None else (1,) * len(times_ms)
    stamps = tuple(int(t * MS) for t in times_ms)
    fields: dict[str, object] = {
        "leg_id": "000-oracle-c1-r0",
        "arm": "oracle",
        "concurrency": 1,
        "repetition": 0,
        "index": 0,
        "prompt_sha256": "p",
        "expected_prompt_tokens": 7,
        "expected_output_tokens": sum(tokens),
        "sent_ns": 0,
        "first_token_ns": stamps[0] if stamps else None,
        "last_token_ns": stamps[-1] if stamps else None,
        "token_times_ns": stamps,
        "tokens_per_event": tokens,
        "prompt_tokens": 7,
        "completion_tokens": sum(tokens),
    }
    return RequestRow.model_validate(fields | over)


def value(name: str, requests: list[RequestRow]) -> float | None:
    return next(axis for axis in AXES if axis.name == name).value(requests)


def test_ttft_runs_from_send_to_first_token() -> None:
    assert ttft_ms(request((250, 300), sent_ns=50 * MS)) == 200


def test_open_loop_latencies_run_from_the_schedule() -> None:
    late = request((500, 600), sent_ns=400 * MS, scheduled_ns=100 * MS)
    assert ttft_ms(late) == 400
    assert e2el_ms(late) == 500


def test_e2el_ends_with_the_last_token_not_with_the_stream() -> None:
    assert e2el_ms(request((100, 180), end_ns=900 * MS)) == 180


def test_tpot_divides_by_usage_minus_one() -> None:
    assert tpot_ms(request((100, 120, 140))) == 20


def test_tpot_of_bundled_chunks_counts_tokens_not_chunks() -> None:
    """Ten tokens as 4 + 3 + 3 at 100, 130, 160 ms: 60 / 9, and never 30."""
    assert tpot_ms(request((100, 130, 160), (4, 3, 3))) == pytest.approx(60 / 9)


@pytest.mark.parametrize("n", [None, 0, 1])
def test_tpot_needs_two_tokens_confirmed_by_usage(n: int | None) -> None:
    assert tpot_ms(request(completion_tokens=n)) is None


def test_itl_spreads_a_gap_over_the_tokens_it_carried() -> None:
    assert itl_ms(request((100, 130, 160), (4, 3, 2))) == (10, 10, 10, 15, 15)


def test_events_of_one_read_are_one_read() -> None:
    burst = request((100, 130, 130, 130))
    assert reads(burst) == ((100 * MS, 1), (130 * MS, 3))
    assert itl_ms(burst) == (10, 10, 10)


def test_throughputs_over_first_send_to_last_token() -> None:
    requests = [
        request((1100, 1500), sent_ns=1000 * MS),
        request((1200, 3000), sent_ns=1100 * MS, end_ns=9000 * MS),
    ]
    assert duration_s(requests) == 2
    assert output_throughput(requests) == 2
    assert total_throughput(requests) == (4 + 14) / 2
    assert request_throughput(requests) == 1


@pytest.mark.parametrize("name", [axis.name for axis in AXES])
def test_one_request_without_tokens_leaves_no_axis_a_value(name: str) -> None:
    """Survivors only would be a flattering subset."""
    dead = request((), completion_tokens=None, prompt_tokens=None)
    assert value(name, [request()] * MIN_REQUESTS_FOR_P99 + [dead]) is None


@pytest.mark.parametrize("name", [axis.name for axis in AXES])
def test_no_requests_no_value(name: str) -> None:
    assert value(name, []) is None


def test_throughput_needs_usage_of_every_request() -> None:
    assert value("output_throughput", [request(), request(completion_tokens=None)]) is None
    assert value("total_throughput", [request(), request(prompt_tokens=None)]) is None


def test_statistics_over_requests() -> None:
    requests = [request((first, first + 10)) for first in (10, 20, 30, 100)]
    assert value("ttft_mean_ms", requests) == 40
    assert value("ttft_median_ms", requests) == 25
    assert value("ttft_p90_ms", requests) == 100
    assert value("ttft_max_ms", requests) == 100
    assert value("tpot_mean_ms", requests) == 10


def test_itl_is_pooled_over_requests() -> None:
    requests = [request((0, 10, 20)), request((0, 40))]
    assert value("itl_mean_ms", requests) == 20
    assert value("itl_median_ms", requests) == 10


def test_percentile_is_nearest_rank() -> None:
    ten = [float(k) for k in range(1, 11)]
    assert percentile(ten, 0.90) == 9
    assert percentile([*ten, 11.0], 0.90) == 10
    assert percentile([5.0], 0.90) == 5


def test_p99_replaces_max_from_459_requests() -> None:
    below, enough = axes_for(MIN_REQUESTS_FOR_P99 - 1), axes_for(MIN_REQUESTS_FOR_P99)
    assert "ttft_max_ms" in {a.name for a in below}
    assert "ttft_p99_ms" not in {a.name for a in below}
    assert "ttft_p99_ms" in {a.name for a in enough}
    assert "ttft_max_ms" not in {a.name for a in enough}
    assert MIN_REQUESTS_FOR_P99 == 459
    assert 0.99**459 < 0.01 < 0.99**458


def test_p99_of_458_requests_is_no_number() -> None:
    many = [request((float(k), k + 10.0)) for k in range(1, MIN_REQUESTS_FOR_P99 + 1)]
    for name in ("ttft_p99_ms", "itl_p99_ms"):
        assert value(name, many[:-1]) is None
    assert value("ttft_p99_ms", many) == 455


def test_a_declared_axis_is_reported_even_where_it_has_no_value() -> None:
    assert "tpot_p99_ms" in {a.name for a in axes_for(8, primary=("tpot_p99_ms",))}


def test_every_axis_says_its_unit_and_direction() -> None:
    assert len(set(AXIS_NAMES)) == len(AXES) + len(SERVER_AXES)
    for axis in AXES:
        assert axis.direction == ("higher" if axis.unit.endswith("/s") else "lower")
        assert axis.name.endswith("_ms") == (axis.unit == "ms")
        assert axis.name.startswith(axis.family)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 4)), min_size=2, max_size=20),
)
def test_itl_gaps_add_up_to_the_stream(events: list[tuple[int, int]]) -> None:
    """Whatever the chunking: gaps sum to last − first, and there is one per token after the first read."""
    stamps, now = [], 0
    for gap, _ in events:
        now += gap
        stamps.append(now)
    row = request(tuple(map(float, stamps)), tuple(tokens for _, tokens in events))
    gaps = itl_ms(row)
    assert sum(gaps) == pytest.approx(stamps[-1] - stamps[0])
    assert len(gaps) == sum(tokens for _, tokens in reads(row)[1:])


def test_a_p90_of_fewer_than_ten_requests_is_not_shown_beside_the_maximum_it_equals() -> None:
    few, enough = ({axis.name for axis in axes_for(count)} for count in (9, 10))
    assert not {name for name in few if "_p90_" in name}
    assert {"ttft_p90_ms", "ttft_max_ms", "itl_p90_ms"} <= enough
    assert "ttft_p90_ms" in {axis.name for axis in axes_for(9, primary=("ttft_p90_ms",))}
