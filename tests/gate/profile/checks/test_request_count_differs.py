"""request-count-differs: one request more, other prompts, or one that did not get its tokens."""

from __future__ import annotations

from dataclasses import replace

from gate.profile import checks
from tests.gate.profile.checks.conftest import evidence


def test_one_request_more_in_the_long_window() -> None:
    broken = evidence(lambda w: {"requests": 2, "completed": 2} if w.output_tokens == 136 else {})
    found = [f for f in checks.findings(broken) if f.code == "request-count-differs"]
    assert len(found) == 2
    assert "requests 1 at 8 tokens and 2 at 136; expected the same" in found[0].message


def test_other_prompts() -> None:
    found = checks.findings(evidence(lambda w: {"prompt_tokens": 2048} if w.output_tokens == 136 else {}))
    assert [f.code for f in found] == ["request-count-differs"] * 2


def test_a_request_that_ended_early() -> None:
    found = checks.findings(evidence(lambda w: {"completed": 0} if w.arm == "candidate" else {}))
    assert [(f.code, f.arm) for f in found] == [("request-count-differs", "candidate")] * 2
    assert "0 of 1 requests of candidate's 8-token window" in found[0].message


def test_a_control_is_held_to_the_same_and_named() -> None:
    good = evidence()
    again = [w.model_copy(update={"role": "control"}) for w in good.windows if w.arm == "candidate"]
    assert checks.findings(replace(good, windows=(*good.windows, *again))) == ()
    again[1] = again[1].model_copy(update={"rounds": 2})
    codes = {f.code: f for f in checks.findings(replace(good, windows=(*good.windows, *again)))}
    assert codes["request-count-differs"].message == (
        "candidate's control windows have rounds 1 at 8 tokens and 2 at 136; expected the same"
    )
