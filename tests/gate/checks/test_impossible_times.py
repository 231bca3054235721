"""impossible-times: stamps ascend and agree."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    "fault",
    [
        lambda r: {"first_token_ns": r.sent_ns - 1, "token_times_ns": (r.sent_ns - 1, *r.token_times_ns[1:])},
        lambda r: {"end_ns": r.last_token_ns - 1},
        lambda r: {"token_times_ns": (*r.token_times_ns[:3], r.token_times_ns[1], *r.token_times_ns[4:])},
        lambda r: {"first_token_ns": r.first_token_ns + 1},
        lambda r: {"last_token_ns": r.last_token_ns - 1},
        lambda r: {"tokens_per_event": r.tokens_per_event[1:], "completion_tokens": 7},
    ],
    ids=["token before send", "end before last", "backwards", "first disagrees", "last disagrees", "counts lost"],
)
def test_a_stamp_that_no_clock_gives_voids_the_leg(build: Any, found: Any, fault: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    row = next(r for r in run.requests if (r.leg_id, r.index) == (leg, 0))
    (finding,) = found(build.alter_request(run, leg, 0, **fault(row)), "impossible-times")
    assert finding.leg_id == leg
    assert "request #0: sent" in finding.message


def test_equal_stamps_are_possible(build: Any, found: Any) -> None:
    """Everything in one read, at once: suspicious, and the business of buffered-stream."""
    run = build.run()
    row = run.requests[0]
    burst = (row.sent_ns,) * 8
    changes = {"first_token_ns": row.sent_ns, "last_token_ns": row.sent_ns, "token_times_ns": burst}
    assert found(build.alter_request(run, row.leg_id, 0, **changes), "impossible-times") == []


def test_a_request_without_tokens_has_no_times_to_judge(build: Any, found: Any) -> None:
    run = build.run()
    nothing = {"first_token_ns": None, "last_token_ns": None, "token_times_ns": (), "tokens_per_event": ()}
    assert found(build.alter_request(run, build.leg_id(run), 0, error="refused", **nothing), "impossible-times") == []


def test_events_without_counts_agree_with_any_stamps(build: Any, found: Any) -> None:
    """A server that does not let one know how many tokens an event carried."""
    run = build.run()
    assert found(build.alter_request(run, build.leg_id(run), 0, tokens_per_event=()), "impossible-times") == []


def test_the_stamps_shown_are_those_of_the_first_bad_request(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    rows = [r for r in run.requests if r.leg_id == leg and r.index in (1, 3)]
    for row in rows:
        run = build.alter_request(run, leg, row.index, end_ns=row.last_token_ns - 1)
    (finding,) = found(run, "impossible-times")
    first = rows[0]
    assert finding.message.startswith(
        f"request #1 and 1 more: sent {first.sent_ns}, first token {first.first_token_ns}, "
        f"last token {first.last_token_ns}, end {first.last_token_ns - 1} ns; "
    )
