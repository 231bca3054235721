"""prefix-cache-on: unique prompts must miss. The recipe allows 8 shared tokens a prompt, 32 over 4 requests."""

from __future__ import annotations

import dataclasses
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


def test_the_most_cached_request_decides(build: Any, found: Any) -> None:
    """One of four: the others missed, or did not say."""
    run = build.run()
    leg = build.leg_id(run)
    for index, cached in ((0, 0), (1, 40), (2, 9)):
        run = build.alter_request(run, leg, index, cached_prompt_tokens=cached)
    (finding,) = found(run)
    assert "40 prompt tokens came from a prefix cache; expected at most 8" in finding.message


def test_prompts_that_may_share_nothing(build: Any, found: Any) -> None:
    """A bound of 0: what no request reports is not one token, and one token is too many."""
    run = build.run(workload={"max_common_prefix": 0})
    leg = build.leg_id(run)
    assert found(run) == []
    (finding,) = found(build.alter_request(run, leg, 0, cached_prompt_tokens=1))
    assert "1 prompt tokens came from a prefix cache; expected at most 0" in finding.message


def test_an_arm_without_an_identity_reports_no_caching(build: Any, found: Any) -> None:
    assert found(dataclasses.replace(build.run(), identities=()), "prefix-cache-on") == []
