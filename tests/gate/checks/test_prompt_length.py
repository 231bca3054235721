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
