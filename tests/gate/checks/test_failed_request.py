"""failed-request: the fault, and what only looks like it."""

from __future__ import annotations

from typing import Any

import pytest

from gate.checks.failed_request import failed

DEAD = {
    "first_token_ns": None,
    "last_token_ns": None,
    "token_times_ns": (),
    "tokens_per_event": (),
    "token_ids": None,
    "prompt_tokens": None,
    "completion_tokens": None,
    "finish_reason": None,
    "saw_done": False,
}


@pytest.mark.parametrize(
    ("fault", "cause"),
    [({"http_status": 503}, "HTTP 503"), ({"error": "connection refused", "http_status": None}, "connection refused")],
)
def test_a_request_that_failed_voids_its_leg(build: Any, found: Any, fault: Any, cause: str) -> None:
    run = build.run()
    leg = build.leg_id(run)
    (finding,) = found(build.alter_request(run, leg, 2, **DEAD, **fault), "failed-request")
    assert finding.leg_id == leg
    assert finding.concurrency == 2
    assert f"1 of 4 requests failed (#2: {cause})" in finding.message


def test_several_are_counted(build: Any, found: Any) -> None:
    run = build.run()
    for index in (0, 3):
        run = build.alter_request(run, build.leg_id(run), index, **DEAD, error="timed out")
    (finding,) = found(run, "failed-request")
    assert "2 of 4 requests failed (#0 and 1 more: timed out)" in finding.message


def test_the_first_ones_cause_is_named(build: Any, found: Any) -> None:
    run = build.run()
    for index, error in ((0, "timed out"), (3, "reset")):
        run = build.alter_request(run, build.leg_id(run), index, **DEAD, error=error)
    assert ": timed out)" in found(run, "failed-request")[0].message


def test_silence_alone_is_no_failure(build: Any) -> None:
    """Without an error and with status 200, or none, other checks say what is missing."""
    request = build.run().requests[0]
    assert [failed(request.model_copy(update=DEAD | {"http_status": status})) for status in (200, None, 500)] == [
        False,
        False,
        True,
    ]


def test_an_error_after_tokens_has_its_own_code(build: Any, found: Any) -> None:
    run = build.run()
    codes = {f.code for f in found(build.alter_request(run, build.leg_id(run), 0, error="reset"))}
    assert "failed-request" not in codes


def test_a_count_that_the_records_do_not_show_is_a_fault(build: Any, found: Any) -> None:
    run = build.run()
    (finding,) = found(build.alter_leg(run, build.leg_id(run), failed=1))
    assert finding.code == "failed-request"
    assert "more than its records show" in finding.message


def test_a_good_leg_is_silent(build: Any, found: Any) -> None:
    assert found(build.run(), "failed-request") == []
