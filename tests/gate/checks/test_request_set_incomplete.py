"""request-set-incomplete: all requests, once each, the same in both arms."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest


def test_a_lost_record_voids_the_leg(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    rest = tuple(r for r in run.requests if (r.leg_id, r.index) != (leg, 3))
    (finding,) = found(dataclasses.replace(run, requests=rest), "request-set-incomplete")
    assert finding.leg_id == leg
    assert "3 records of 3 different requests; expected 4" in finding.message


def test_a_record_twice_voids_the_leg(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    rows = tuple(r.model_copy(update={"index": 2}) if (r.leg_id, r.index) == (leg, 3) else r for r in run.requests)
    finding = found(dataclasses.replace(run, requests=rows), "request-set-incomplete")[0]
    assert "4 records of 3 different requests; expected 4" in finding.message


def test_different_prompts_void_both_legs_of_the_repetition(build: Any, found: Any) -> None:
    run = build.run()
    findings = found(build.alter_request(run, build.leg_id(run), 1, prompt_sha256="other"), "request-set-incomplete")
    assert {f.arm for f in findings} == {"candidate", "oracle"}
    assert {f.concurrency for f in findings} == {2}
    assert any("prompt #1" in f.message for f in findings)


def test_prompts_that_both_arms_got_and_nobody_planned_void_their_legs(build: Any, found: Any) -> None:
    run = build.run()
    for arm in ("candidate", "oracle"):
        run = build.alter_request(run, build.leg_id(run, arm), 1, prompt_sha256="ab" * 32)
    findings = found(run, "request-set-incomplete")
    assert [f.arm for f in findings] == ["oracle", "candidate"]
    assert all("as planned" in f.message for f in findings)


def test_a_complete_set_is_silent(build: Any, found: Any) -> None:
    assert found(build.run(), "request-set-incomplete") == []


def test_a_digest_that_is_none_is_said(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    finding = found(build.alter_request(run, leg, 1, prompt_sha256="other"), "request-set-incomplete")[0]
    assert finding.leg_id == leg
    assert finding.message.startswith("the prompts' digest is none; expected ")


@pytest.mark.parametrize("arm", ["candidate", "oracle"])
def test_a_record_that_one_arm_lacks_is_not_another_prompt(build: Any, found: Any, arm: str) -> None:
    """The leg that lacks it is void; the other arm's is whole."""
    run = build.run()
    leg = build.leg_id(run, arm)
    rest = tuple(r for r in run.requests if (r.leg_id, r.index) != (leg, 1))
    assert [f.leg_id for f in found(dataclasses.replace(run, requests=rest), "request-set-incomplete")] == [leg]
