"""schedule-lag: at 2 requests/s a stream and 2 streams arrivals are 250 ms apart, and 25 ms late is the limit."""

from __future__ import annotations

from typing import Any

import pytest

MS = 1_000_000
OPEN = {"arrival": "constant", "rate_per_stream": 2.0}


@pytest.mark.parametrize(("late_ms", "voided"), [(25, False), (26, True), (-5, False)])
def test_just_below_and_above_a_tenth_of_the_gap(build: Any, found: Any, late_ms: int, voided: bool) -> None:
    run = build.run(workload=OPEN)
    leg = build.leg_id(run)
    row = next(r for r in run.requests if (r.leg_id, r.index) == (leg, 1))
    late = build.alter_request(run, leg, 1, scheduled_ns=row.sent_ns - late_ms * MS)
    findings = found(late, "schedule-lag")
    assert [f.leg_id for f in findings] == ([leg] if voided else [])


def test_the_message_has_both_figures(build: Any, found: Any) -> None:
    run = build.run(workload=OPEN)
    row = run.requests[0]
    late = build.alter_request(run, row.leg_id, 0, scheduled_ns=row.sent_ns - 100 * MS)
    assert "100.0 ms late; expected at most 50.0 ms" in found(late, "schedule-lag")[0].message


def test_closed_loop_has_no_schedule(build: Any, found: Any) -> None:
    run = build.run()
    row = run.requests[0]
    late = build.alter_request(run, row.leg_id, 0, scheduled_ns=row.sent_ns - 900 * MS)
    assert found(late, "schedule-lag") == []


def test_the_latest_send_decides(build: Any, found: Any) -> None:
    """Of those that were late, on time or not scheduled; beyond says by how much."""
    run = build.run(workload=OPEN)
    leg = build.leg_id(run)
    for index, late_ms in ((0, 0), (1, 50), (2, 10)):
        row = next(r for r in run.requests if (r.leg_id, r.index) == (leg, index))
        run = build.alter_request(run, leg, index, scheduled_ns=row.sent_ns - late_ms * MS)
    (finding,) = found(run, "schedule-lag")
    assert finding.message == "a request was sent 50.0 ms late; expected at most 25.0 ms"
    assert finding.beyond == 2.0
