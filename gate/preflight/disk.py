"""3 There is room for the records: a full disk at the last leg would cost the run."""

from __future__ import annotations

import shutil
from pathlib import Path

from gate.errors import StorageError
from gate.observe.rows import Finding
from gate.plan import Plan

BYTES_PER_TOKEN = 64
"""A token costs an id and a stamp in parquet, and an event's share of the raw stream in memory: far below this."""
FIXED_BYTES = 500_000_000
"""Server logs, plots, and the room that a file system needs to stay fast."""


def need_bytes(plan: Plan) -> int:
    workload = plan.recipe.workload
    return FIXED_BYTES + sum(leg.requests for leg in plan.all_legs) * workload.output_tokens * BYTES_PER_TOKEN


def check(plan: Plan, out: Path) -> tuple[Finding, ...]:
    """Raises StorageError when the results' file system has less free than the run needs."""
    place = next(folder for folder in (out, *out.resolve().parents) if folder.exists())
    free, need = shutil.disk_usage(place).free, need_bytes(plan)
    if free < need:
        raise StorageError(
            f"{free / 1e9:.1f} GB free in {place}", expected=f"{need / 1e9:.1f} GB", hint="free some, or use --out"
        )
    return ()
