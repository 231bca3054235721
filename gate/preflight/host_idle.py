"""3 The host is not busy with something else: a compiler in the next window costs both arms, but not equally."""

from __future__ import annotations

from pathlib import Path

import psutil

from gate.messages import HOST_BUSY
from gate.observe.rows import Finding
from gate.plan import Plan
from gate.units import percent

WINDOW_S = 0.5
BUSY_SHARE = 0.25
"""Of all cores. A desktop at rest stays below 10 %; one busy core of two is 50 %."""


def check(_plan: Plan, _out: Path) -> tuple[Finding, ...]:
    """A finding when the cores were busy just before the first server started."""
    return judge(psutil.cpu_percent(WINDOW_S) / 100)


def judge(busy_share: float) -> tuple[Finding, ...]:
    if busy_share <= BUSY_SHARE:
        return ()
    return (
        Finding(
            code=HOST_BUSY,
            message=f"{percent(busy_share)} of the cores were busy before the start; limit {percent(BUSY_SHARE)}",
            hint="stop other work on this machine and run again",
        ),
    )
