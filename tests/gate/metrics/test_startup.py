"""Start-up figures: closed forms, and what leaves a start without one."""

from __future__ import annotations

from typing import Any

import pytest

from gate.metrics.startup import DECIDES, START_AXES, first_token_s, port_open_s, proven, ready_s
from gate.observe.rows import StartRow

S = 1_000_000_000


def start(**over: Any) -> StartRow:
    fields: dict[str, Any] = {
        "arm": "candidate",
        "start_id": "1",
        "started_at": "x",
        "repetition": 0,
        "spawn_ns": 10 * S,
        "port_open_ns": 12 * S,
        "ready_ns": 14 * S,
        "first_token_ns": 15 * S,
        "page_cache": "cold",
        "wanted_cache": "cold",
    }
    return StartRow.model_validate(fields | over)


def test_times_run_from_the_spawn() -> None:
    assert (port_open_s(start()), ready_s(start()), first_token_s(start())) == (2, 4, 5)
    assert list(START_AXES) == ["port_open_s", "ready_s", DECIDES]


@pytest.mark.parametrize(
    "over",
    [
        {"port_open_ns": None, "ready_ns": None, "first_token_ns": None},
        {"page_cache": "partly"},
        {"page_cache": None},
        {"error": "died"},
    ],
)
def test_what_was_not_seen_or_not_proven_has_no_figure(over: dict[str, Any]) -> None:
    assert [value(start(**over)) for value in START_AXES.values()] == [None] * 3


def test_a_page_cache_that_nobody_asked_about_may_be_anything() -> None:
    assert proven(start(page_cache="partly", wanted_cache=None))
    assert first_token_s(start(page_cache="partly", wanted_cache=None)) == 5
