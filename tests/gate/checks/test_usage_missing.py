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
