"""`keep`: a made-up run as a folder on disk, as a gate would have left it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gate.compare.record import Baseline
from gate.conclude import conclude
from gate.judge import judge
from gate.observe import store
from gate.observe.rundata import RunData
from gate.plan import plan_hash

Keep = Callable[..., Path]
FINISHED = "2026-01-01T00:10:00Z"


def keep_run(
    results: Path,
    run: RunData,
    name: str,
    *,
    host: str = "box",
    baseline: Baseline | None = None,
    whole: bool = False,
    **plan: Any,
) -> Path:
    """whole: with its report."""
    made = run.plan.model_copy(update=plan)
    made = made.model_copy(update={"plan_id": plan_hash(made)})
    run = dataclasses.replace(run, plan=made)
    place = store.Store(results / host / name)
    about = store.RunFile(run_id=name, host=host, started_at=run.started_at, machine=run.machine, client=run.client)
    place.create(made, about)
    if baseline is not None:
        place.write_baseline(baseline)
    place.append_identities(run.identities)
    for leg in run.legs:
        rows = [row for row in run.requests if row.leg_id == leg.leg_id]
        place.append_leg(leg, rows, [row for row in run.telemetry if row.leg_id == leg.leg_id])
    if whole:
        conclude(place.folder, FINISHED)
    else:  # no page and no plot: quicker, where nobody looks at them
        report = judge(dataclasses.replace(store.read_run(place.folder), finished_at=FINISHED))
        place.complete(FINISHED, report.verdict.value, report.exit_code)
    return place.folder


@pytest.fixture
def keep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Keep:
    def kept(run: RunData, name: str, **options: Any) -> Path:
        folder = keep_run(tmp_path / "results", run, name, **options)
        capsys.readouterr()
        return folder

    return kept
