"""The engine that served is not the engine that was planned.

What it does
    Voids the run when the digest of its own sources that a running engine reports differs from that of the sources that
    lay there when the plan was made.
Why
    An incremental build that verified nothing, a server of yesterday still on the port, a file edited between the plan
    and the start: the number is then filed under a commit that never made it.
Deciding numbers
    manifest.source_sha256 of /version against the plan's; they must be equal. An engine that reports none is not
    judged; it keeps the grid from binding.
What to do
    Stop every engine that still runs, leave the sources alone while a run is under way, and start a new one.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.evidence import Evidence
from gate.observe.rows import ARMS, Finding
from gate.observe.settings import manifest

CODE = "engine-stale"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = "stop every engine that still runs, leave its sources alone during a run, and start a new one"
SHOWN = 12


def stale(served: object, planned: str | None) -> bool:
    """Both must be known to differ."""
    return isinstance(served, str) and planned is not None and served != planned


def check(evidence: Evidence) -> Iterator[Finding]:
    for arm in ARMS:
        identity, planned = evidence.identity(arm), evidence.arm_plan(arm).source_sha256
        served = manifest(identity).get("source_sha256") if identity is not None else None
        if stale(served, planned):
            message = (
                f"the {arm} was served by sources {str(served)[:SHOWN]}; expected {(planned or '')[:SHOWN]}, as planned"
            )
            yield Finding(code=CODE, message=message, hint=HINT, arm=arm)
