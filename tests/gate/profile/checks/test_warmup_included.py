"""warmup-included: a window opened too early, or a server that counted more than was asked of it."""

from __future__ import annotations

import pytest

from gate.profile import checks
from tests.gate.profile.checks.conftest import evidence


def test_a_window_opened_before_the_warm_up_ended() -> None:
    found = checks.findings(evidence(lambda _: {"start_ns": 5_000_000, "warmup_ended_ns": 8_500_000}))
    assert {f.code for f in found} == {"warmup-included"}
    assert "began 3.5 ms before the warm-up ended" in found[0].message


def test_a_third_more_tokens_than_were_asked_for() -> None:
    """Counts of 32 where 24 were sent: integral, and everything a third too slow."""
    found = checks.findings(evidence(lambda w: {"counted_tokens": (1024 + w.output_tokens) * 4 // 3}))
    assert {f.code for f in found} == {"warmup-included"}
    assert "the server counted 1376 tokens in candidate's 8-token window; expected 1032" in found[0].message
    assert found[0].beyond == pytest.approx(4 / 3)


def test_a_window_may_open_at_the_very_end_of_the_warm_up() -> None:
    assert checks.findings(evidence(lambda _: {"start_ns": 5, "warmup_ended_ns": 5})) == ()


def test_one_token_a_request_may_be_booked_late() -> None:
    assert checks.findings(evidence(lambda w: {"counted_tokens": 1024 + w.output_tokens + 1})) == ()
    assert checks.findings(evidence(lambda w: {"counted_tokens": 1024 + w.output_tokens + 2})) != ()


def test_a_server_that_counts_nothing_is_no_fault() -> None:
    assert checks.findings(evidence(lambda _: {"counted_tokens": None})) == ()
