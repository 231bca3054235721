"""prompt-length: what the server read is what was sent."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("tokens", [15, 17, 0])
def test_one_token_more_or_less_voids_the_leg(build: Any, found: Any, tokens: int) -> None:
    run = build.run()
    (finding,) = found(build.alter_request(run, build.leg_id(run), 1, prompt_tokens=tokens), "prompt-length")
    assert f"usage.prompt_tokens is {tokens} in request #1; expected 16" in finding.message


def test_equal_counts_are_silent(build: Any, found: Any) -> None:
    assert found(build.run(), "prompt-length") == []


def test_what_was_not_counted_is_not_of_wrong_length(build: Any, found: Any) -> None:
    """usage-missing says so."""
    run = build.run()
    assert found(build.alter_request(run, build.leg_id(run), 1, prompt_tokens=None), "prompt-length") == []


def test_the_first_bad_request_is_shown(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    for index, expected in ((1, 18), (3, 20)):
        run = build.alter_request(run, leg, index, prompt_tokens=expected - 1, expected_prompt_tokens=expected)
    (finding,) = found(run, "prompt-length")
    assert finding.message == "usage.prompt_tokens is 17 in request #1 and 1 more; expected 18"
