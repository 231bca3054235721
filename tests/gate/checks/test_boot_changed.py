"""boot-changed: a repetition compares two legs of one boot."""

from __future__ import annotations

from typing import Any


def test_a_restart_between_the_two_legs_of_a_repetition_voids_both(build: Any, found: Any) -> None:
    run = build.run()
    late = build.leg_id(run, "oracle", 2, 2)
    findings = found(build.alter_leg(run, late, boot_id="boot-2"))
    assert {f.code for f in findings} == {"boot-changed"}
    assert {f.leg_id for f in findings} == {late, build.leg_id(run, "candidate", 2, 2)}
    assert "repetition 2 ran in boot boot-1 (candidate) and boot-2 (oracle); expected one" in findings[0].message


def test_a_restart_between_repetitions_is_a_resumed_run(build: Any, found: Any) -> None:
    run = build.run()
    for arm in ("candidate", "oracle"):
        for concurrency in (1, 2):
            run = build.alter_leg(run, build.leg_id(run, arm, concurrency, 2), boot_id="boot-2")
    assert found(run) == []


def test_an_unknown_boot_is_not_another_one(build: Any, found: Any) -> None:
    run = build.run()
    for arm in ("candidate", "oracle"):
        assert found(build.alter_leg(run, build.leg_id(run, arm), boot_id=None)) == []
