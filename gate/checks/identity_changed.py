"""An arm was not the same server throughout.

What it does
    Compares what an arm says of itself (version, model, effective configuration, as one digest) before and after
    each leg with what it first said, and voids the legs that differ. A server that did not answer differs.
Why
    A symlink re-pointed, a server re-deployed, a flag changed through an admin route: two configurations have been
    averaged under one name.
Deciding numbers
    The identity digests before and after the leg and the arm's first one; they must be equal.
What to do
    Keep others off the arm while it is measured; find what changed in plan.json's and the run's identities.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence
from gate.observe.rows import ARMS, Finding, LegRow

CODE = "identity-changed"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = "compare the identities in the run's records; keep others off the arm while it is measured"


def changed(row: LegRow, expected: str) -> bool:
    return {row.identity_before, row.identity_after} != {expected}


def check(evidence: Evidence) -> Iterator[Finding]:
    for arm in ARMS:
        identity = evidence.identity(arm)
        if identity is None:
            continue  # arms-not-as-planned says so
        expected = identity.digest
        for leg in evidence.of_arm(arm):
            if changed(leg.row, expected):
                message = (
                    f"identity {leg.row.identity_before} before and {leg.row.identity_after} after the leg; "
                    f"expected {expected} throughout"
                )
                yield void_leg(CODE, leg, message, HINT)
