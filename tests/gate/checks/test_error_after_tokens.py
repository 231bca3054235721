"""error-after-tokens: HTTP 200, some tokens, then an error."""

from __future__ import annotations

from typing import Any


def test_an_error_after_tokens_voids_its_leg(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run, "oracle", 1, 0)
    (finding,) = found(build.alter_request(run, leg, 1, error="engine died"))
    assert (finding.code, finding.leg_id, finding.arm) == ("error-after-tokens", leg, "oracle")
    assert "1 of 2 requests broke off (#1: engine died)" in finding.message


def test_an_error_without_tokens_has_another_code(build: Any, found: Any) -> None:
    run = build.run()
    dead = {"first_token_ns": None, "last_token_ns": None, "token_times_ns": (), "tokens_per_event": ()}
    broken = build.alter_request(run, build.leg_id(run), 0, error="refused", **dead)
    assert found(broken, "error-after-tokens") == []


def test_a_good_leg_is_silent(build: Any, found: Any) -> None:
    assert found(build.run(), "error-after-tokens") == []
