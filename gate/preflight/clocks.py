"""3 No GPU of this run is held back by heat or power before it has begun."""

from __future__ import annotations

from pathlib import Path

import pynvml

from gate import lock
from gate.observe import gpu
from gate.observe.rows import Finding
from gate.plan import Plan


def check(plan: Plan, _out: Path) -> tuple[Finding, ...]:
    """A finding for each GPU that is held back. Whether clocks are pinned is not asked: no driver call tells, and what
    counts is how far they moved, which every leg's telemetry shows."""
    if not plan.recipe.gpu:
        return ()
    ours, found = set(lock.keys(plan)), []
    with gpu.session() as handles:
        for handle in handles:
            uuid = str(pynvml.nvmlDeviceGetUUID(handle))
            if uuid not in ours:
                continue
            try:
                mask = int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
            except pynvml.NVMLError:
                found.append(_finding(uuid, "does not tell whether its clocks are held back", "update the driver"))
                continue
            if held := gpu.held_back(mask):
                found.append(
                    _finding(uuid, f"is held back: {', '.join(held)}", "let it cool, or check its power supply")
                )
    return tuple(found)


def _finding(uuid: str, message: str, hint: str) -> Finding:
    return Finding(code="clocks-held-back", message=f"GPU {uuid} {message}", hint=hint)
