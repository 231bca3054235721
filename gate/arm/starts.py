"""4 How long servers took to start: kept beside their logs, so that the next run here can say what to expect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gate.plan import ArmPlan

FILE = "starts.json"


def note(logs: Path, plan: ArmPlan, took_s: float) -> None:
    """Add one start to the run's own list."""
    starts = [*_read(logs / FILE), {"server": _server(plan), "took_s": round(took_s, 1)}]
    (logs / FILE).write_text(json.dumps(starts) + "\n", encoding="utf-8")


def expected_s(logs: Path, plan: ArmPlan) -> float | None:
    """Seconds that the same server took in the newest run of this host; None where it was never started here.

    logs: <results>/<host>/<run>/logs.
    """
    for path in sorted(logs.parents[1].glob(f"*/logs/{FILE}"), reverse=True):
        for start in reversed(_read(path)):
            if start.get("server") == _server(plan) and isinstance(start.get("took_s"), float):
                return float(start["took_s"])
    return None


def _server(plan: ArmPlan) -> list[str]:
    """What makes two starts comparable: the arm, the command line but for its port, and the checkpoint."""
    port = str(urlsplit(plan.url).port)
    return [plan.arm, *("PORT" if word == port else word for word in plan.argv or ()), plan.checkpoint_digest or ""]


def _read(path: Path) -> list[dict[str, Any]]:
    """Nothing where there is no such file, or it was damaged: an expectation is not worth an error."""
    try:
        starts = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return []
    return [start for start in starts if isinstance(start, dict)] if isinstance(starts, list) else []
