"""What an arm is, or does not tell, keeps a grid from binding: each thing is said of the arm, once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.judge import judge


def told(run: Any) -> list[str]:
    """Without the noise prior, which nothing here is about."""
    return [reason for reason in judge(run).not_binding_because if not reason.startswith("the noise prior")]


def planned(run: Any, arm: str, **changes: Any) -> Any:
    changed = run.plan.arm(arm).model_copy(update=changes)
    return dataclasses.replace(run, plan=run.plan.model_copy(update={arm: changed}))


@pytest.mark.parametrize("arm", ["candidate", "oracle"])
def test_a_checkpoint_without_a_digest_is_no_other_copy(build: Any, arm: str) -> None:
    assert told(planned(build.run(), arm, checkpoint_digest=None)) == [f"the {arm}'s checkpoint has no digest"]


def test_an_attached_url_is_not_asked_for_a_digest(build: Any) -> None:
    assert told(planned(build.run(), "candidate", kind="url", checkpoint_digest=None)) == [
        "the candidate is an attached URL: its start, flags and environment are not the gate's"
    ]


@pytest.mark.parametrize(("error", "said"), [(None, True), ("connection reset", False)])
def test_one_answer_without_token_ids_is_enough_unless_it_failed(build: Any, error: str | None, said: bool) -> None:
    run = build.run()
    mute = build.alter_request(run, build.leg_id(run, "oracle"), 1, token_ids=None, error=error)
    why = ["the oracle returns no token ids: how many tokens it made is its own word"]
    assert [reason for reason in told(mute) if "token ids" in reason] == (why if said else [])
