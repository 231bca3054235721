"""truncated-stream: both closing marks are needed."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("fault", "lacks"), [({"saw_done": False}, "[DONE]"), ({"finish_reason": None}, "finish_reason")]
)
def test_either_mark_missing_voids_the_leg(build: Any, found: Any, fault: Any, lacks: str) -> None:
    run = build.run()
    (finding,) = found(build.alter_request(run, build.leg_id(run), 3, **fault))
    assert finding.code == "truncated-stream"
    assert f"1 of 4 streams ended without {lacks} (#3)" in finding.message


def test_a_request_with_an_error_is_not_reported_twice(build: Any, found: Any) -> None:
    run = build.run()
    broken = build.alter_request(run, build.leg_id(run), 0, error="reset", saw_done=False, finish_reason=None)
    assert [f.code for f in found(broken)] == ["error-after-tokens"]


def test_a_good_leg_is_silent(build: Any, found: Any) -> None:
    assert found(build.run(), "truncated-stream") == []


def test_a_request_that_was_refused_is_not_reported_twice(build: Any, found: Any) -> None:
    """Without an error of the client's: the status is enough."""
    nothing = {"first_token_ns": None, "last_token_ns": None, "token_times_ns": (), "tokens_per_event": ()}
    run = build.run()
    refused = build.alter_request(run, build.leg_id(run), 0, http_status=500, saw_done=False, **nothing)
    assert found(refused, "failed-request")
    assert found(refused, "truncated-stream") == []


def test_what_the_first_bad_stream_lacks_is_named(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    run = build.alter_request(build.alter_request(run, leg, 1, finish_reason=None), leg, 3, saw_done=False)
    (finding,) = found(run, "truncated-stream")
    assert finding.message == "2 of 4 streams ended without finish_reason (#1 and 1 more); expected 0"
