"""The kernels of a step do not add up to its wall time.

What it does
    Marks every lever unproven when the time with a kernel on the device differs by more than 1 % from the step's wall
    time, measured without tracing on the same server.
Why
    Kernels that are missing from the trace, work on the host between steps and tracing's own cost all look like
    nothing in a table of kernels. The step has to be explained before its parts are.
Deciding numbers
    |busy / wall - 1| ≤ 1 %. Busy is the union of all intervals, since dependent launches and side streams overlap;
    the sum of kernels is larger and closes nothing. Beside them the median and the largest time between two tokens of
    the untraced rounds: a step that is as long as the wall time says has such a median; a stop once a request does not.
What to do
    Busy below wall: the device waits for the host, which is a lever of its own (the residual line). Busy above wall:
    tracing slowed the kernels; compare the clocks of both runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.observe.rows import Finding
from gate.profile.checks.evidence import Evidence, finding
from gate.profile.rows import StepTable

CODE = "not-closed"
REFUSES = False
TOLERANCE = 0.01
BELOW, ABOVE = "the device waits for the host: see the residual", "tracing slowed the kernels: compare clocks"


def _gaps(table: StepTable) -> str:
    if table.gap_us is None or table.largest_gap_us is None:
        return ""
    return f"; between two tokens {table.gap_us:.0f} µs by the median, {table.largest_gap_us:.0f} at most"


def check(evidence: Evidence) -> Iterator[Finding]:
    for arm, table in evidence.tables.items():
        if table.wall_us is None or table.busy_us is None:
            yield finding(
                CODE, arm, f"{arm}'s step has no untraced wall time to close on", "profile it with gate profile"
            )
            continue
        off = table.busy_us / table.wall_us - 1
        if abs(off) > TOLERANCE:
            yield finding(
                CODE,
                arm,
                f"kernels run {table.busy_us:.0f} µs of {arm}'s {table.wall_us:.0f} µs a step ({100 * off:+.1f} %); "
                f"expected within 1 %{_gaps(table)}",
                BELOW if off < 0 else ABOVE,
                abs(off) / TOLERANCE,
            )
