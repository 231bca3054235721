"""What of a leg may not change: which latency, in which requests, for which axes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.evidence import Evidence
from gate.checks.latencies import latencies, median_itl_ms, observable, until
from gate.metrics import AXES
from gate.metrics.tpot import tpot_ms

OF_BOTH = ("e2el", "output_throughput", "total_throughput", "request_throughput")
FAMILIES = {axis.family for axis in AXES}


@pytest.mark.parametrize(("lumps", "seen"), [((2, 2, 1, 1), True), ((2, 2, 2), False)])
def test_what_is_no_buffer_can_be_looked_at(build: Any, lumps: tuple[int, ...], seen: bool) -> None:
    """Six tokens in four reads are the limit of buffered-stream; a leg without a token shows nothing."""
    (leg, *_) = Evidence.of(build.run(workload={"output_tokens": 6})).legs
    row = leg.requests[0]
    stamps = tuple(row.token_times_ns[k] for k, size in enumerate(lumps) for _ in range(size))
    assert observable(dataclasses.replace(leg, requests=(row.model_copy(update={"token_times_ns": stamps}),))) == seen
    assert not observable(dataclasses.replace(leg, requests=()))


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("together", {"TTFT": (None,), "median ITL": (None,)}),
        ("staggered", {"TTFT": ("ttft", *OF_BOTH), "TPOT": ("tpot", *OF_BOTH), "median ITL": ("itl",)}),
    ],
)
def test_which_latency_speaks_for_which_axes(build: Any, start: str, expected: dict[str, Any]) -> None:
    run = build.run(protocol={"concurrency": (1, 2)}, workload={"requests_per_stream": 8, "start": start})
    workload = run.plan.recipe.workload
    for leg in Evidence.of(run).legs:
        beside = ("itl",) if start == "staggered" and leg.row.concurrency > 1 else ()
        wanted = expected | {"TTFT": (*expected["TTFT"], *beside)}
        assert {latency.name: latency.families for latency in latencies(leg, workload)} == wanted
        assert {family for families in expected.values() for family in families} <= {None, *FAMILIES}
        assert [r.sent_ns for r in latencies(leg, workload)[0].requests] == sorted(r.sent_ns for r in leg.requests)


def test_a_leg_without_tokens_has_none(build: Any) -> None:
    run = build.run()
    (leg, *_) = Evidence.of(run).legs
    assert latencies(dataclasses.replace(leg, requests=()), run.plan.recipe.workload) == ()


def test_a_request_counts_from_half_of_its_tokens_on(build: Any) -> None:
    """A token at the stamp itself has come. What is left is a request of its own: TPOT is that of its tokens."""
    row = build.run().requests[0]
    ms = 10**6
    row = row.model_copy(
        update={
            "first_token_ns": 10 * ms, "last_token_ns": 50 * ms,
            "token_times_ns": tuple(k * ms for k in (10, 20, 35, 50)),
            "tokens_per_event": (1, 1, 1, 1), "completion_tokens": 4,
        }
    )  # fmt: skip
    assert until([row], 20 * ms - 1) == ()
    (half,) = until([row], 20 * ms)
    assert (half.token_times_ns, half.completion_tokens, tpot_ms(half)) == ((10 * ms, 20 * ms), 2, 10)
    (most,) = until([row], 49 * ms)
    assert (most.tokens_per_event, tpot_ms(most)) == ((1, 1, 1), 12.5)
    assert until([row], 50 * ms) == (row,)
    silent = row.model_copy(update={"token_times_ns": (), "tokens_per_event": ()})
    assert until([silent], 50 * ms) == ()
    three = row.model_copy(update={"token_times_ns": row.token_times_ns[:3], "tokens_per_event": (1, 1, 1)})
    assert until([three], 10 * ms) == (), "one of three is less than half"
    assert median_itl_ms(row) == 15.0
    (uncounted,) = until([row.model_copy(update={"tokens_per_event": ()})], 20 * ms)
    assert uncounted.completion_tokens is None


@pytest.mark.parametrize("concurrency", [1, 2])
def test_decoding_is_under_load_until_the_last_send(build: Any, concurrency: int) -> None:
    """The last request of each stream is sent then, and has no token yet; all others had ended."""
    run = build.run(workload={"requests_per_stream": 8, "start": "staggered"})
    leg = Evidence.of(run).at(concurrency)[0]
    requests = tuple(sorted(leg.requests, key=lambda request: request.sent_ns))
    ttft, tpot, itl = latencies(leg, run.plan.recipe.workload)
    assert ttft.requests == requests
    assert tpot.requests == itl.requests == requests[:-concurrency]
