"""checkpoint-changed: the folder is at both ends what it was in the plan."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

CODE = "checkpoint-changed"


def looked(run: Any, when: str, checkpoints: dict[str, str]) -> Any:
    looks = tuple(
        look.model_copy(update={"checkpoints": checkpoints}) if look.when == when else look for look in run.pins
    )
    return dataclasses.replace(run, pins=looks)


@pytest.mark.parametrize("when", ["start", "end"])
@pytest.mark.parametrize("arm", ["candidate", "oracle"])
def test_another_digest_at_either_end(build: Any, found: Any, arm: str, when: str) -> None:
    digests = {"candidate": "d1", "oracle": "d1", arm: "another"}
    (finding,) = found(looked(build.run(), when, digests))
    assert (finding.code, finding.arm, finding.concurrency) == (CODE, arm, None)
    assert f"digest another at the {when}; expected d1" in finding.message


def test_the_first_look_that_differs_is_said(build: Any, found: Any) -> None:
    run = looked(looked(build.run(), "start", {"oracle": "x"}), "end", {"oracle": "y"})
    (finding,) = found(run)
    assert "digest x at the start" in finding.message


def test_a_folder_that_is_not_known_is_not_judged(build: Any, found: Any) -> None:
    assert found(looked(looked(build.run(), "start", {}), "end", {})) == []
    run = build.run()
    plan = run.plan.model_copy(update={"oracle": run.plan.oracle.model_copy(update={"checkpoint_digest": None})})
    assert found(dataclasses.replace(run, plan=plan), CODE) == []


def test_digests_are_cut_to_twelve_digits(build: Any, found: Any) -> None:
    run = looked(build.run(), "end", {"oracle": "0123456789abcdef"})
    changed = run.plan.oracle.model_copy(update={"checkpoint_digest": "fedcba9876543210"})
    run = looked(run, "start", {})
    (finding,) = found(dataclasses.replace(run, plan=run.plan.model_copy(update={"oracle": changed})), CODE)
    assert "digest 0123456789ab at the end; expected fedcba987654, as planned" in finding.message
