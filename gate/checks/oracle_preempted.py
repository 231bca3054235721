"""The oracle ran out of KV cache and threw work away.

What it does
    Voids a leg in which the oracle preempted requests: it gave their KV blocks away and computed them again later.
Why
    A pool of 256 blocks has been held against one of 1.8 million tokens. An opponent that recomputes its prompts for
    want of memory that it was not given is no denominator. A candidate that preempts loses by itself.
Deciding numbers
    Preemptions that the oracle counted during the leg; 0 are allowed. A server that does not count is not judged.
What to do
    Give the oracle more memory (--gpu-memory-utilization in oracle.args), or lower the concurrency for both.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence
from gate.observe.rows import Finding
from gate.units import counted

CODE = "oracle-preempted"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = "give the oracle more memory (--gpu-memory-utilization in oracle.args), or lower the concurrency for both"


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.of_arm("oracle"):
        if leg.row.preemptions:
            message = f"the oracle preempted {counted(leg.row.preemptions, 'time')} during the leg; expected 0"
            yield void_leg(CODE, leg, message, HINT)
