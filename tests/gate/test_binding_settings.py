"""What was not read back, or was left to each arm, keeps a grid from binding, and nothing else does."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.judge import judge

SENTENCES = ("does not report", "looked at again", "may_differ", "pins no digest")


def told(run: Any) -> list[str]:
    return [reason for reason in judge(run).not_binding_because if any(words in reason for words in SENTENCES)]


def planned(run: Any, arm: str, **changes: Any) -> Any:
    changed = run.plan.arm(arm).model_copy(update=changes)
    return dataclasses.replace(run, plan=run.plan.model_copy(update={arm: changed}))


def checkpoint(run: Any, **changes: Any) -> Any:
    recipe = run.plan.recipe
    changed = recipe.model_copy(update={"checkpoint": recipe.checkpoint.model_copy(update=changes)})
    return dataclasses.replace(run, plan=run.plan.model_copy(update={"recipe": changed}))


def test_a_good_run_has_nothing_to_tell(build: Any) -> None:
    assert told(build.run()) == []


def test_an_arm_without_an_identity_is_told_of_elsewhere(build: Any) -> None:
    assert told(dataclasses.replace(build.run(), identities=())) == []


def test_only_an_engine_has_sources(build: Any) -> None:
    run = build.run()
    bare = build.alter_identity(
        run, "candidate", extra={**run.identities[0].extra, "manifest": '{"quantization": "modelopt"}'}
    )
    assert told(bare) == ["the candidate does not report the digest of its sources"]
    assert told(planned(bare, "candidate", kind="vllm")) == []


def test_a_setting_that_may_differ_may_be_left_unsaid(build: Any) -> None:
    run = build.run(protocol={"may_differ": ("max_num_batched_tokens",)})
    said = {key: value for key, value in run.identities[1].extra.items() if not key.endswith("batched_tokens")}
    silent = build.alter_identity(run, "oracle", extra=said)
    assert told(silent) == []


def test_only_the_pinned_vllm_is_looked_at_again(build: Any) -> None:
    run = dataclasses.replace(build.run(), pins=())
    assert told(run) == ["the oracle's packages and checkpoint were not looked at again after the legs"]
    assert told(planned(run, "oracle", kind="command")) == []


def test_the_look_before_the_legs_is_not_the_one_after_them(build: Any) -> None:
    run = build.run()
    (start, _end) = run.pins
    assert len(told(dataclasses.replace(run, pins=(start,)))) == 1


@pytest.mark.parametrize(
    ("hub", "digest", "pinned"), [("a/b", None, True), (None, "d1", True), ("a/b", "d1", True), (None, None, False)]
)
def test_a_checkpoint_is_pinned_by_revision_or_by_digest(
    build: Any, hub: str | None, digest: str | None, pinned: bool
) -> None:
    assert (told(checkpoint(build.run(), hub=hub, digest=digest)) == []) is pinned
