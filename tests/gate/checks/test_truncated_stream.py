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
