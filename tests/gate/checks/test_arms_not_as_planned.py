"""arms-not-as-planned: what was read back is what was asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "another"}, "model is another, planned made-up"),
        ({"max_model_len": 63}, "max_model_len is 63, planned 64"),
    ],
)
def test_a_key_that_differs_voids_the_run(build: Any, found: Any, changes: Any, said: str) -> None:
    (finding,) = found(build.alter_identity(build.run(), "oracle", **changes))
    assert (finding.code, finding.arm, finding.leg_id, finding.concurrency) == (
        "arms-not-as-planned",
        "oracle",
        None,
        None,
    )
    assert said in finding.message


def test_a_kv_dtype_asked_for_is_read_back(build: Any, found: Any) -> None:
    run = build.run(kv_cache_dtype="fp8")
    first, second = found(run, "arms-not-as-planned")
    assert "kv_cache_dtype is " in first.message
    assert "kv_cache_dtype is " in second.message
    for arm, name in (("candidate", "fp8"), ("oracle", "fp8_e4m3")):
        run = build.alter_identity(run, arm, kv_cache_dtype=name)
    assert found(run, "arms-not-as-planned") == []


def test_an_arm_that_never_said_what_it_is(build: Any, found: Any) -> None:
    run = dataclasses.replace(build.run(), identities=build.run().identities[1:])
    (finding,) = found(run)
    assert (finding.code, finding.arm) == ("arms-not-as-planned", "candidate")


def test_what_is_not_reported_is_not_judged(build: Any, found: Any) -> None:
    run = build.alter_identity(build.run(), "candidate", model=None, max_model_len=None, kv_cache_dtype=None)
    assert found(run, "arms-not-as-planned") == []


def test_a_length_limit_that_the_plan_did_not_set_is_not_judged(build: Any, found: Any) -> None:
    run = build.alter_identity(build.run(), "candidate", max_model_len=9999)
    plan = run.plan.model_copy(update={"candidate": run.plan.candidate.model_copy(update={"kind": "url"})})
    assert found(dataclasses.replace(run, plan=plan), "arms-not-as-planned") == []


def test_a_name_that_was_not_planned_is_not_judged(build: Any, found: Any) -> None:
    """A command or URL serves whatever it calls its one model."""
    run = build.alter_identity(build.run(), "candidate", model="its own name")
    plan = run.plan.model_copy(update={"candidate": run.plan.candidate.model_copy(update={"model": ""})})
    assert found(dataclasses.replace(run, plan=plan)) == []


def test_the_length_limit_of_an_engine_is_judged(build: Any, found: Any) -> None:
    run = build.alter_identity(build.run(), "candidate", max_model_len=63)
    plan = run.plan.model_copy(update={"candidate": run.plan.candidate.model_copy(update={"kind": "engine"})})
    (finding,) = found(dataclasses.replace(run, plan=plan), "arms-not-as-planned")
    assert "max_model_len is 63" in finding.message


def test_an_arm_that_did_not_run_has_nothing_to_say(build: Any, found: Any) -> None:
    run = build.run()
    alone = build.without_legs(run, *(leg.leg_id for leg in run.plan.legs if leg.arm == "candidate"))
    kept = tuple(identity for identity in alone.identities if identity.arm == "oracle")
    assert found(dataclasses.replace(alone, identities=kept), "arms-not-as-planned") == []
