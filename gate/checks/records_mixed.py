"""Records that this run did not make.

What it does
    Voids a leg that was measured for another run or outside this run's time, whose requests lie outside the leg's own
    time, or whose records are those of another leg once more.
Why
    A weak cell was once filled in from a second harness (eight times off in absolute terms); a folder copied over a
    folder leaves a run that is whole, and of two mornings.
Deciding numbers
    The leg's run_id against the run's; its start against the run's start and end, in whole seconds; sends and ends of
    its requests against its own; equal stamps of all requests in two legs.
What to do
    Measure again; records are never merged by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, Leg, first
from gate.observe.rows import Finding, RequestRow
from gate.observe.rundata import RunData

CODE = "records-mixed"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = "measure again: records are never merged by hand"


def foreign(leg: Leg, run: RunData) -> str | None:
    """Why the leg is another run's."""
    if leg.row.run_id not in (None, run.run_id):
        return f"it was measured for run {leg.row.run_id}; expected {run.run_id}"
    began = _seconds(leg.row.started_at)
    if began < _seconds(run.started_at):
        return f"it started at {leg.row.started_at}, before the run ({run.started_at})"
    if run.finished_at is not None and began > _seconds(run.finished_at):
        return f"it started at {leg.row.started_at}, after the run ended ({run.finished_at})"
    return None


def outside(leg: Leg) -> list[RequestRow]:
    """Requests sent before the leg began or ended after it did."""
    return [r for r in leg.requests if r.sent_ns < leg.row.start_ns or (r.end_ns or r.sent_ns) > leg.row.end_ns]


def stamps(leg: Leg) -> tuple[tuple[int, tuple[int, ...]], ...]:
    return tuple((request.sent_ns, request.token_times_ns) for request in leg.requests)


def check(evidence: Evidence) -> Iterator[Finding]:
    seen: dict[tuple[tuple[int, tuple[int, ...]], ...], str] = {}
    for leg in evidence.legs:
        why, strays = foreign(leg, evidence.run), outside(leg)
        twin = seen.setdefault(stamps(leg), leg.name)
        if why is not None:
            yield void_leg(CODE, leg, why, HINT)
        elif strays:
            message = f"request {first(strays)} was not sent and ended within the leg; expected all of them"
            yield void_leg(CODE, leg, message, HINT)
        elif leg.requests and twin != leg.name:
            yield void_leg(CODE, leg, f"its requests have the stamps of {twin}'s; expected records of its own", HINT)


def _seconds(text: str) -> int:
    """Unix time, cut to whole seconds: a run's own stamps have no more."""
    return int(datetime.fromisoformat(text).timestamp())
