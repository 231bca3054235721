"""output-length: usage, stream and ids agree with what was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from gate.checks.output_length import counts, wrong_length


@pytest.mark.parametrize(
    "fault",
    [
        {"completion_tokens": 7},
        {"completion_tokens": 9},
        {"token_ids": (1, 2, 3)},
        {"tokens_per_event": (1,) * 7 + (2,)},
    ],
    ids=["short usage", "long usage", "ids lost", "stream longer than usage"],
)
def test_any_count_that_differs_voids_the_leg(build: Any, found: Any, fault: Any) -> None:
    run = build.run()
    (finding,) = found(build.alter_request(run, build.leg_id(run), 0, **fault), "output-length")
    assert finding.message.endswith("expected 8")


def test_usage_without_any_token_is_a_fault(build: Any, found: Any) -> None:
    """A role-only delta, then usage of the full length: nothing was streamed."""
    run = build.run()
    nothing = {"first_token_ns": None, "last_token_ns": None, "token_times_ns": (), "tokens_per_event": ()}
    findings = found(build.alter_request(run, build.leg_id(run), 0, token_ids=None, **nothing), "output-length")
    assert "streamed 0, usage.completion_tokens 8; expected 8" in findings[0].message


def test_bundled_events_with_the_right_sum_are_silent(build: Any, found: Any) -> None:
    run = build.run()
    row = run.requests[0]
    stamps = (row.token_times_ns[0], *row.token_times_ns[2:])
    merged = build.alter_request(run, row.leg_id, 0, token_times_ns=stamps, tokens_per_event=(2, 1, 1, 1, 1, 1, 1))
    assert found(merged, "output-length") == []


def test_a_server_without_ids_is_not_a_fault_of_length(build: Any, found: Any) -> None:
    run = build.run()
    assert found(build.alter_request(run, build.leg_id(run), 0, token_ids=None), "output-length") == []


def test_a_request_that_broke_off_is_not_reported_twice(build: Any, found: Any) -> None:
    run = build.run()
    broken = build.alter_request(run, build.leg_id(run), 0, error="reset", token_ids=(1, 2))
    assert found(broken, "output-length") == []


def test_without_usage_there_is_no_length_to_judge(build: Any, found: Any) -> None:
    run = build.run()
    assert found(build.alter_request(run, build.leg_id(run), 0, completion_tokens=None), "output-length") == []


def test_events_without_counts_are_not_zero_tokens(build: Any, found: Any) -> None:
    """A server that does not let one know how many tokens an event carried."""
    run = build.run()
    assert found(build.alter_request(run, build.leg_id(run), 0, tokens_per_event=()), "output-length") == []


def test_the_counts_shown_are_those_of_the_first_bad_request(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    run = build.alter_request(build.alter_request(run, leg, 1, token_ids=(1, 2)), leg, 3, token_ids=(1, 2, 3))
    (finding,) = found(run, "output-length")
    counts = "streamed 8, usage.completion_tokens 8, token_ids 2"
    assert finding.message == f"request #1 and 1 more: {counts}; expected 8"


@pytest.mark.parametrize("nothing_to_judge", [{"completion_tokens": None}, {"error": "reset"}])
def test_a_request_that_another_check_reports_is_not_of_wrong_length(build: Any, nothing_to_judge: Any) -> None:
    """Whatever else it lacks."""
    short = build.run().requests[0].model_copy(update={"token_ids": (1, 2)})
    assert wrong_length(short) is True
    assert wrong_length(short.model_copy(update=nothing_to_judge)) is False


def test_a_count_that_there_is_not_is_left_out(build: Any) -> None:
    row = build.run().requests[0].model_copy(update={"completion_tokens": None})
    assert counts(row) == {"streamed": 8, "token_ids": 8}
    assert counts(row.model_copy(update={"token_ids": None, "tokens_per_event": ()})) == {}
