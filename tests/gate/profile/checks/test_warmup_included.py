"""warmup-included: a window opened too early, or a server that counted more than was asked of it."""

from __future__ import annotations

from gate.profile import checks
from tests.gate.profile.checks.conftest import evidence


def test_a_window_opened_before_the_warm_up_ended() -> None:
    found = checks.findings(evidence(lambda w: {"warmup_ended_ns": w.start_ns + 3_500_000}))
    assert {f.code for f in found} == {"warmup-included"}
    assert "began 3.5 ms before the warm-up ended" in found[0].message


def test_a_third_more_tokens_than_were_asked_for() -> None:
    """Counts of 32 where 24 were sent: integral, and everything a third too slow."""
    found = checks.findings(evidence(lambda w: {"counted_tokens": (1024 + w.output_tokens) * 4 // 3}))
    assert {f.code for f in found} == {"warmup-included"}
    assert "the server counted 1376 tokens in candidate's 8-token window; expected 1032" in found[0].message


def test_one_token_a_request_may_be_booked_late() -> None:
    assert checks.findings(evidence(lambda w: {"counted_tokens": 1024 + w.output_tokens + 1})) == ()
    assert checks.findings(evidence(lambda w: {"counted_tokens": 1024 + w.output_tokens + 2})) != ()


def test_a_server_that_counts_nothing_is_no_fault() -> None:
    assert checks.findings(evidence(lambda _: {"counted_tokens": None})) == ()
