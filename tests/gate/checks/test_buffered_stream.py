"""buffered-stream: token times must be the tokens' own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.buffered_stream import tokens_per_read


def lumps(run: Any, leg: str, sizes: tuple[int, ...]) -> Any:
    """Re-stamp the leg's tokens: each lump arrives when its last token did."""

    def restamp(row: Any) -> Any:
        stamps: list[int] = []
        for size in sizes:
            stamps += [row.token_times_ns[len(stamps) + size - 1]] * size
        return row.model_copy(update={"token_times_ns": tuple(stamps), "first_token_ns": stamps[0]})

    requests = tuple(restamp(r) if r.leg_id == leg else r for r in run.requests)
    return dataclasses.replace(run, requests=requests)


def test_a_whole_answer_in_one_read_voids_the_streaming_axes(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    findings = found(lumps(run, leg, (8,)), "buffered-stream")
    assert {f.axis for f in findings} == {"ttft", "tpot", "itl"}
    assert {f.leg_id for f in findings} == {leg}
    assert "8.00 tokens a read; expected at most 1.5" in findings[0].message
    assert findings[0].beyond == pytest.approx(8 / 1.5)


@pytest.mark.parametrize(
    ("sizes", "voided"),
    [((1,) * 8, False), ((2, 1, 1, 1, 1, 1, 1), False), ((2, 2, 2, 1, 1), True), ((2, 2, 2, 2), True)],
)
def test_a_merge_now_and_then_is_no_buffer(build: Any, found: Any, sizes: Any, voided: bool) -> None:
    """8 tokens in 5 reads are 1.6 a read."""
    run = build.run()
    assert bool(found(lumps(run, build.leg_id(run), sizes), "buffered-stream")) == voided


def test_exactly_the_limit_is_allowed(build: Any, found: Any) -> None:
    run = build.run(workload={"output_tokens": 6})
    assert found(lumps(run, build.leg_id(run), (2, 2, 1, 1)), "buffered-stream") == []


def test_no_tokens_no_reads(build: Any) -> None:
    row = build.run().requests[0]
    nothing = row.model_copy(update={"token_times_ns": (), "tokens_per_event": ()})
    assert tokens_per_read([nothing]) is None
    uncounted = row.model_copy(update={"tokens_per_event": (), "completion_tokens": None})
    assert tokens_per_read([uncounted]) == 0
    assert tokens_per_read([row, nothing]) == tokens_per_read([row]) == 1


def test_what_events_carried_goes_before_usage(build: Any) -> None:
    row = build.run().requests[0]
    assert tokens_per_read([row.model_copy(update={"completion_tokens": None})]) == 1


def test_a_leg_without_a_token_is_another_checks_matter(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    silent = {"token_times_ns": (), "tokens_per_event": (), "token_ids": None, "completion_tokens": 0}
    requests = tuple(row.model_copy(update=silent) if row.leg_id == leg else row for row in run.requests)
    assert found(dataclasses.replace(run, requests=requests), "buffered-stream") == []


def test_usage_counts_where_events_do_not(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    for index in range(4):
        row = next(r for r in run.requests if (r.leg_id, r.index) == (leg, index))
        stamps = (row.first_token_ns, row.last_token_ns)
        run = build.alter_request(run, leg, index, token_times_ns=stamps, tokens_per_event=(), token_ids=None)
    assert "4.00 tokens a read" in found(run, "buffered-stream")[0].message
    assert {f.code for f in found(run)} == {"buffered-stream"}


def test_events_of_several_tokens_count_too(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    for index in range(4):
        row = next(r for r in run.requests if (r.leg_id, r.index) == (leg, index))
        stamps = (row.first_token_ns, row.last_token_ns)
        run = build.alter_request(run, leg, index, token_times_ns=stamps, tokens_per_event=(4, 4))
    assert "4.00 tokens a read" in found(run, "buffered-stream")[0].message


def test_other_work_on_the_host_is_named_as_the_cause(build: Any, found: Any) -> None:
    """A busy host makes the client read late, and then no buffer need be looked for."""
    run = build.run()
    leg = build.leg_id(run)
    lumped = lumps(run, leg, (8,))
    busy = dataclasses.replace(lumped, preflight=(build.finding(code="host-busy"),))
    assert "the buffer" in found(lumped, "buffered-stream")[0].hint
    assert "kept this host busy" in found(busy, "buffered-stream")[0].hint
    assert found(build.alter_leg(lumped, leg, host_load_foreign_cpu_s=1e6), "buffered-stream") == []
