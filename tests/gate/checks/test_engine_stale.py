"""engine-stale: the sources that served are those of the plan."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from gate.checks.engine_stale import stale


def made_of(build: Any, run: Any, **manifest: Any) -> Any:
    identity = next(one for one in run.identities if one.arm == "candidate")
    whole = json.loads(identity.extra["manifest"]) | manifest
    return build.alter_identity(run, "candidate", extra=identity.extra | {"manifest": json.dumps(whole)})


def test_yesterdays_sources(build: Any, found: Any) -> None:
    (finding,) = found(made_of(build, build.run(), source_sha256="s0"))
    assert (finding.code, finding.arm, finding.leg_id) == ("engine-stale", "candidate", None)
    assert "sources s0; expected s1" in finding.message


@pytest.mark.parametrize(
    ("served", "planned", "answer"),
    [("a", "b", True), ("a", "a", False), (None, "a", False), ("a", None, False), (7, "a", False)],
)
def test_both_must_be_known(served: object, planned: str | None, answer: bool) -> None:
    assert stale(served, planned) is answer


def test_an_engine_that_reports_none_is_not_judged(build: Any, found: Any) -> None:
    assert found(build.alter_identity(build.run(), "candidate", extra={"engine": "x", "manifest": "null"})) == []
    assert found(build.alter_identity(build.run(), "candidate", extra={"engine": "x", "manifest": "{"})) == []


def test_digests_are_cut_to_twelve_digits(build: Any, found: Any) -> None:
    run = made_of(build, build.run(), source_sha256="0123456789abcdef")
    planned = run.plan.candidate.model_copy(update={"source_sha256": "fedcba9876543210"})
    run = dataclasses.replace(run, plan=run.plan.model_copy(update={"candidate": planned}))
    (finding,) = found(run)
    assert finding.message.endswith("sources 0123456789ab; expected fedcba987654, as planned")


def test_an_arm_without_an_identity_has_no_sources(build: Any, found: Any) -> None:
    assert found(dataclasses.replace(build.run(), identities=()), "engine-stale") == []
