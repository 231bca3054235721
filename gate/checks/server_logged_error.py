"""The server reported an error while it was measured.

What it does
    Voids a leg during which lines at level ERROR or above, a Python traceback or a CUDA error were added to the log of
    its server, from the warm-up to the last read of its counters. An attached server's log is not ours to read.
Why
    A worker that died and was replaced, a kernel that fell back, a request that was retried inside: the answers may
    look whole, and the times and tokens are those of another server than the one that was meant.
Deciding numbers
    Such lines; 0 are allowed. The first one is shown.
What to do
    Read the arm's log in the run's folder around that line.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence
from gate.observe.rows import Finding

CODE = "server-logged-error"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = "read the arm's log in the run's folder around that line"


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        if leg.row.server_log_errors:
            found = f"the server logged {leg.row.server_log_errors} errors: {leg.row.server_log_first_error}"
            message = f"{found}; expected 0"
            yield void_leg(CODE, leg, message, HINT)
