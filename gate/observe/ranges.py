"""4 Names legs on a profiler's time line (`GATE_NVTX=1 nsys profile --trace=cuda,nvtx gate run …`); off by default."""

from __future__ import annotations

import contextlib
import os

SWITCH = "GATE_NVTX"


def leg_range(leg_id: str) -> contextlib.AbstractContextManager[object]:
    """An NVTX range around a leg where GATE_NVTX=1, else nothing: an unprofiled run must not pay for it."""
    if os.environ.get(SWITCH) != "1":
        return contextlib.nullcontext()
    import nvtx

    made: contextlib.AbstractContextManager[object] = nvtx.annotate(leg_id, domain="gate")
    return made
