"""identity-changed: one server per arm, before and after every leg."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest


@pytest.mark.parametrize("key", ["identity_before", "identity_after"])
def test_a_changed_identity_voids_the_leg(build: Any, found: Any, key: str) -> None:
    run = build.run()
    leg = build.leg_id(run)
    (finding,) = found(build.alter_leg(run, leg, **{key: "other"}))
    assert (finding.code, finding.leg_id) == ("identity-changed", leg)
    assert finding.message.endswith("expected candidate-id throughout")


def test_a_change_that_stays_voids_every_later_leg(build: Any, found: Any) -> None:
    run = build.run()
    oracle = [leg for leg in run.legs if leg.arm == "oracle"]
    for leg in oracle[2:]:
        run = build.alter_leg(run, leg.leg_id, identity_before="new", identity_after="new")
    assert [f.leg_id for f in found(run, "identity-changed")] == [leg.leg_id for leg in oracle[2:]]


def test_arms_may_differ_from_each_other(build: Any, found: Any) -> None:
    run = build.run()
    assert {leg.identity_before for leg in run.legs} == {"candidate-id", "oracle-id"}
    assert found(run, "identity-changed") == []


def test_a_server_that_did_not_answer_at_first_voids_that_leg_only(build: Any, found: Any) -> None:
    run = build.run()
    leg = next(leg for leg in run.legs if leg.arm == "oracle")
    (finding,) = found(build.alter_leg(run, leg.leg_id, identity_before="unreachable"))
    assert (finding.code, finding.leg_id) == ("identity-changed", leg.leg_id)


def test_an_arm_that_never_said_what_it_is_has_nothing_to_change(build: Any, found: Any) -> None:
    """arms-not-as-planned says so; the other arm is judged all the same."""
    run = build.run()
    theirs = tuple(identity for identity in run.identities if identity.arm == "oracle")
    silent = build.alter_leg(run, build.leg_id(run, "oracle"), identity_after="other")
    (finding,) = found(dataclasses.replace(silent, identities=theirs), "identity-changed")
    assert finding.arm == "oracle"
