"""Prefill and decode rates: closed forms, and what leaves a request without one."""

from __future__ import annotations

from typing import Any

import pytest

from gate.metrics.decode_rate import decode_rate
from gate.metrics.prefill_rate import prefill_rate
from gate.observe.rows import RequestRow

MS = 1_000_000


def request(times_ms: tuple[float, ...], tokens: tuple[int, ...] | None = None, **over: Any) -> RequestRow:
    stamps = tuple(int(t * MS) for t in times_ms)
    fields: dict[str, Any] = {
        "leg_id": "l",
        "arm": "candidate",
        "concurrency": 1,
        "repetition": 0,
        "index": 0,
        "prompt_sha256": "p",
        "expected_prompt_tokens": 512,
        "expected_output_tokens": len(times_ms),
        "sent_ns": 0,
        "first_token_ns": stamps[0] if stamps else None,
        "last_token_ns": stamps[-1] if stamps else None,
        "token_times_ns": stamps,
        "tokens_per_event": (1,) * len(stamps) if tokens is None else tokens,
        "prompt_tokens": 512,
    }
    return RequestRow.model_validate(fields | over)


def test_prefill_is_the_prompt_over_the_time_to_the_first_token() -> None:
    assert prefill_rate(request((256,))) == 2000
    assert prefill_rate(request((256,), sent_ns=128 * MS)) == 4000
    assert prefill_rate(request((256, 999))) == 2000


def test_prefill_counts_what_the_server_read() -> None:
    assert prefill_rate(request((256,), prompt_tokens=256)) == 1000


@pytest.mark.parametrize("over", [{"first_token_ns": None}, {"prompt_tokens": None}, {"sent_ns": 256 * MS}])
def test_prefill_needs_a_token_a_count_and_time_that_passed(over: dict[str, Any]) -> None:
    assert prefill_rate(request((256,), **over)) is None


def test_decode_leaves_the_first_token_out() -> None:
    """Four steps in 80 ms: the 300 ms before the first token are the prompt's."""
    assert decode_rate(request((300, 320, 340, 360, 380))) == 50


def test_decode_of_bundled_events_counts_the_tokens_after_the_first_read() -> None:
    assert decode_rate(request((100, 130, 160), (4, 3, 3))) == 100
    assert decode_rate(request((100, 100, 150), (1, 1, 1))) == 20


@pytest.mark.parametrize("tokens", [(), (1,)])
def test_decode_needs_two_reads_and_counts_for_each_event(tokens: tuple[int, ...]) -> None:
    assert decode_rate(request((100,), tokens)) is None
    assert decode_rate(request((100, 200), ())) is None
