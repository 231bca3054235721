"""A checkpoint on disk is not the one that was planned.

What it does
    Voids the run when the digest of an arm's checkpoint folder, taken again before the first leg and after the last,
    differs from the planned one.
Why
    A repository was re-quantised in place from NVFP4 to FP8 under one name, and a server that is restarted between two
    blocks loads whatever lies there by then.
Deciding numbers
    sha256 over every file of the folder, at the start and at the end, against the plan's. An attached server's folder
    is not known and not judged.
What to do
    Find out who writes there; pin the revision (hub) or the digest (path) in the recipe and start a new run.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.evidence import Evidence
from gate.observe.rows import ARMS, Arm, Finding

CODE = "checkpoint-changed"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = "find out who writes to that folder, and start a new run"
SHOWN = 12


def changed(evidence: Evidence, arm: Arm) -> tuple[str, str, str] | None:
    """(when, digest found, digest planned) of the first look that differs from the plan."""
    planned = evidence.arm_plan(arm).checkpoint_digest
    for look in evidence.run.pins:
        found = look.checkpoints.get(arm)
        if planned is not None and found is not None and found != planned:
            return look.when, found, planned
    return None


def check(evidence: Evidence) -> Iterator[Finding]:
    for arm in ARMS:
        found = changed(evidence, arm)
        if found is not None:
            when, digest, planned = found
            folder = evidence.arm_plan(arm).checkpoint
            message = (
                f"the {arm}'s checkpoint {folder} has digest {digest[:SHOWN]} at the {when}; "
                f"expected {planned[:SHOWN]}, as planned"
            )
            yield Finding(code=CODE, message=message, hint=HINT, arm=arm)
