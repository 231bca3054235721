"""prefix-cache-on: unique prompts must miss. The recipe allows 8 shared tokens a prompt, 32 over 4 requests."""

from __future__ import annotations

from typing import Any


def test_caching_reported_on_voids_the_run(build: Any, found: Any) -> None:
    (finding,) = found(build.alter_identity(build.run(), "oracle", prefix_caching=True))
    assert (finding.code, finding.arm, finding.concurrency) == ("prefix-cache-on", "oracle", None)


def test_hits_beyond_what_unique_prompts_share_void_the_leg(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    (finding,) = found(build.alter_leg(run, leg, prefix_cache_hit_tokens=33))
    assert (finding.code, finding.leg_id) == ("prefix-cache-on", leg)
    assert "33 prompt tokens came from a prefix cache; expected at most 32" in finding.message
    assert found(build.alter_leg(run, leg, prefix_cache_hit_tokens=32)) == []


def test_one_cached_request_voids_the_leg(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    (finding,) = found(build.alter_request(run, leg, 0, cached_prompt_tokens=9))
    assert "9 prompt tokens came from a prefix cache; expected at most 8" in finding.message
    assert found(build.alter_request(run, leg, 0, cached_prompt_tokens=8)) == []


def test_an_unread_counter_is_not_a_fault(build: Any, found: Any) -> None:
    run = build.run()
    assert found(build.alter_leg(run, build.leg_id(run), prefix_cache_hit_tokens=None)) == []
