"""usage-missing: the server's own counts or nothing."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("key", ["prompt_tokens", "completion_tokens"])
def test_either_count_missing_voids_the_leg(build: Any, found: Any, key: str) -> None:
    run = build.run()
    (finding,) = found(build.alter_request(run, build.leg_id(run), 0, **{key: None}))
    assert finding.code == "usage-missing"
    assert "1 of 4 requests have no usage (#0)" in finding.message


def test_a_failed_request_is_not_reported_twice(build: Any, found: Any) -> None:
    run = build.run()
    broken = build.alter_request(run, build.leg_id(run), 0, error="reset", completion_tokens=None)
    assert found(broken, "usage-missing") == []


def test_a_good_leg_is_silent(build: Any, found: Any) -> None:
    assert found(build.run(), "usage-missing") == []


def test_a_request_that_was_refused_is_not_reported_twice(build: Any, found: Any) -> None:
    """Without an error of the client's: the status is enough."""
    nothing = {"first_token_ns": None, "last_token_ns": None, "token_times_ns": (), "tokens_per_event": ()}
    run = build.run()
    refused = build.alter_request(run, build.leg_id(run), 0, http_status=500, completion_tokens=None, **nothing)
    assert found(refused, "failed-request")
    assert found(refused, "usage-missing") == []
