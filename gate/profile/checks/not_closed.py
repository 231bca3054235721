"""A step in the trace is not as long as one without tracing.

What it does
    Marks every lever unproven when the time with a kernel on the device and the time between kernels, both by the
    trace, differ together by more than 1 % from the step's wall time, measured without tracing on the same server.
Why
    Kernels that are missing from the trace, work on the host between steps and tracing's own cost all look like
    nothing in a table of kernels. The step has to be explained before its parts are.
Deciding numbers
    |(busy + idle) / wall - 1| ≤ 1 %. Busy is the union of all intervals, since dependent launches and side streams
    overlap; the sum of kernels is larger and closes nothing. Idle is what the trace has between its kernels, a lever
    of its own: a device that waits for its host waits in the trace too. A profile of before it was recorded closes on
    busy alone. Beside them the median and the largest time between two tokens of
    the untraced rounds: a step that is as long as the wall time says has such a median; a stop once a request does not.
What to do
    Below wall: kernels are missing from the trace, or it has no idle time and the device waits for the host. Above
    wall: tracing slowed the kernels, or the host between them; compare the clocks of both runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.observe.rows import Finding
from gate.profile.checks.evidence import Evidence, finding
from gate.profile.rows import StepTable

CODE = "not-closed"
REFUSES = False
TOLERANCE = 0.01
BELOW, ABOVE = "the device waits for the host: see the residual", "tracing slowed the step: compare clocks"
SHORT = "kernels of the step are missing from the trace"


def _gaps(table: StepTable) -> str:
    if table.gap_us is None or table.largest_gap_us is None:
        return ""
    return f"; between two tokens {table.gap_us:.0f} µs by the median, {table.largest_gap_us:.0f} at most"


def _idle(table: StepTable) -> str:
    return "" if table.idle_us is None else f" and none for {table.idle_us:.0f}"


def check(evidence: Evidence) -> Iterator[Finding]:
    for arm, table in evidence.tables.items():
        if table.wall_us is None or table.busy_us is None:
            yield finding(
                CODE, arm, f"{arm}'s step has no untraced wall time to close on", "profile it with gate profile"
            )
            continue
        off = (table.busy_us + (table.idle_us or 0.0)) / table.wall_us - 1
        if abs(off) > TOLERANCE:
            yield finding(
                CODE,
                arm,
                f"kernels run {table.busy_us:.0f} µs{_idle(table)} of {arm}'s {table.wall_us:.0f} µs a step "
                f"({100 * off:+.1f} %); expected within 1 %{_gaps(table)}",
                ABOVE if off > 0 else BELOW if table.idle_us is None else SHORT,
                abs(off) / TOLERANCE,
            )
