"""A server was restarted where none was planned.

What it does
    Voids a leg whose server has another start id after it than before. Where the plan keeps both servers up for the
    whole run, also voids the first leg after a restart that only one arm made.
Why
    A crashed server that a supervisor brings back answers cold, with empty caches and graphs to capture, in the
    middle of a leg. Restarts of both arms together are a resumed run, and are not held against it.
Deciding numbers
    Start ids before and after each leg; where both stay up, the legs between which each arm's start id changed.
What to do
    Read the arm's log for the crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, Leg
from gate.observe.rows import ARMS, Arm, Finding, LegRow

CODE = "server-restarted"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = "read the arm's log for the crash"


def within(row: LegRow) -> bool:
    return row.server_start_id_after is not None and row.server_start_id_after != row.server_start_id


def restarts(evidence: Evidence, arm: Arm) -> list[tuple[Leg, int, int]]:
    """(leg that found another server than the arm's leg before it had left, position before it, its own position)."""
    placed = [(position, leg) for position, leg in enumerate(evidence.legs) if leg.row.arm == arm]
    return [
        (leg, earlier, position)
        for (earlier, before), (position, leg) in pairwise(placed)
        if leg.row.server_start_id != (before.row.server_start_id_after or before.row.server_start_id)
    ]


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        if within(leg.row):
            found = f"{leg.row.server_start_id} before, {leg.row.server_start_id_after} after"
            yield void_leg(CODE, leg, f"the server restarted in the leg ({found}); expected one server", HINT)
    if evidence.plan.recipe.protocol.residency != "both":
        return
    candidate, oracle = (restarts(evidence, arm) for arm in ARMS)
    for own, others in ((candidate, oracle), (oracle, candidate)):
        for leg, after, until in own:
            if any(after < theirs_until and theirs_after < until for _, theirs_after, theirs_until in others):
                continue  # both arms, with no leg in between: a run that was resumed
            message = (
                f"the server was restarted before the leg ({leg.row.server_start_id}) and the other arm's was not; "
                "expected both to stay up for the whole run"
            )
            yield void_leg(CODE, leg, message, HINT)
