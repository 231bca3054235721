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


@pytest.mark.parametrize("arm", ["candidate", "oracle"])
def test_failed_warm_up_requests_bind_not_and_void_nothing(build: Any, arm: str) -> None:
    run = build.run()
    good = judge(run)
    for concurrency, repetition, failed in ((1, 2, 1), (2, 0, 2)):
        changes = {"warmup_failed": failed, "warmup_first_error": f"HTTP {500 + failed}: no"}
        run = build.alter_leg(run, build.leg_id(run, arm, concurrency, repetition), **changes)
    first = next(leg.leg_id for leg in run.legs if leg.warmup_failed)
    reason = next(leg.warmup_first_error for leg in run.legs if leg.warmup_failed)
    assert told(run) == [f"the {arm} failed 3 warm-up requests in 2 legs, first {first}: {reason}"]
    assert judge(run).cells == good.cells


def test_warm_up_that_was_answered_or_not_counted_is_no_reason(build: Any) -> None:
    run = build.run()
    counted = build.alter_leg(run, build.leg_id(run, "oracle"), warmup_failed=0)
    assert told(counted) == told(run) == []


@pytest.mark.parametrize(("error", "said"), [(None, True), ("connection reset", False)])
def test_one_answer_without_token_ids_is_enough_unless_it_failed(build: Any, error: str | None, said: bool) -> None:
    run = build.run()
    mute = build.alter_request(run, build.leg_id(run, "oracle"), 1, token_ids=None, error=error)
    why = ["the oracle returns no token ids: how many tokens it made is its own word"]
    assert [reason for reason in told(mute) if "token ids" in reason] == (why if said else [])
