"""A server was restarted where none was planned.

What it does
    Voids a leg whose server has another start id after it than before. Where the plan keeps both servers up for the
    whole run, also voids the first leg after a restart that only one arm made.
Why
    A crashed server that a supervisor brings back answers cold, with empty caches and graphs to capture, in the
    middle of a leg. Restarts of both arms together are a resumed run, and are not held against it; an arm that had no
    leg yet when a run was cut off counts as restarted with the other.
Deciding numbers
    Start ids before and after each leg; where both stay up, the legs between which each arm's start id changed. An
    attached server whose /metrics told no start time is taken for the one last seen.
What to do
    Read the arm's log for the crash.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, Leg
from gate.observe.rows import ARMS, START_UNTOLD, Arm, Finding, LegRow

CODE = "server-restarted"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = "read the arm's log for the crash"


def known(start_id: str | None) -> str | None:
    """None where the start was not read: no answer from /metrics under load is not a restart."""
    return None if start_id == START_UNTOLD else start_id


def differ(before: str | None, after: str | None) -> bool:
    return before is not None and after is not None and before != after


def within(row: LegRow) -> bool:
    return differ(known(row.server_start_id), known(row.server_start_id_after))


def restarts(evidence: Evidence, arm: Arm) -> list[tuple[Leg, int, int]]:
    """(leg that found another server than was last known, position of the arm's leg before it, its own position)."""
    placed = [(position, leg) for position, leg in enumerate(evidence.legs) if leg.row.arm == arm]
    found: list[tuple[Leg, int, int]] = []
    last: str | None = None
    for index, (position, leg) in enumerate(placed):
        before, after = known(leg.row.server_start_id), known(leg.row.server_start_id_after)
        if differ(last, before):
            found.append((leg, placed[index - 1][0], position))
        last = after or before or last
    return found


def unseen(evidence: Evidence, arm: Arm) -> list[tuple[int, int]]:
    """Where an arm of a resumed run may have restarted unseen: before its first leg, anywhere if it has none."""
    positions = [position for position, leg in enumerate(evidence.legs) if leg.row.arm == arm]
    return [(-1, min(positions, default=len(evidence.legs)))] if evidence.resumed else []


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        if within(leg.row):
            found = f"{leg.row.server_start_id} before, {leg.row.server_start_id_after} after"
            yield void_leg(CODE, leg, f"the server restarted in the leg ({found}); expected one server", HINT)
    if evidence.plan.recipe.protocol.residency != "both":
        return
    candidate, oracle = (restarts(evidence, arm) for arm in ARMS)
    for own, others, other in ((candidate, oracle, ARMS[1]), (oracle, candidate, ARMS[0])):
        spans = [(after, until) for _, after, until in others] + unseen(evidence, other)
        for leg, after, until in own:
            if any(after < theirs_until and theirs_after < until for theirs_after, theirs_until in spans):
                continue  # both arms, with no leg in between: a run that was resumed
            message = (
                f"the server was restarted before the leg ({leg.row.server_start_id}) and the other arm's was not; "
                "expected both to stay up for the whole run"
            )
            yield void_leg(CODE, leg, message, HINT)
