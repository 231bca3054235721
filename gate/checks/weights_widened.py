"""A module of the candidate's weights takes more memory than the checkpoint ships.

What it does
    Voids the run when the candidate names modules that are resident in a wider dtype than they were shipped in.
Why
    Weights that were dequantised in silence give the same tokens: builds that did so passed every token gate, and read
    2 to 4 times the bytes.
Deciding numbers
    Modules in widened_modules of its manifest; expected 0. A server that does not report them is not judged.
What to do
    engine census lists every module's shipped and resident bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.evidence import Evidence
from gate.observe.residency import residency
from gate.observe.rows import Finding

CODE = "weights-widened"
TIMING_ONLY = False
CONSEQUENCE = False


def check(evidence: Evidence) -> Iterator[Finding]:
    known = residency(evidence.identity("candidate"))
    if known is None or not known.widened:
        return
    wider = known.widened
    yield Finding(
        code=CODE,
        message=f"the candidate holds {wider[0]} wider than shipped ({len(wider)} such modules); expected 0",
        hint="engine census lists every module's shipped and resident bytes",
        arm="candidate",
    )
