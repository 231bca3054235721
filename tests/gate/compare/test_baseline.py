"""The regression axis: which grid is the baseline, that it is kept with the run, and that every report shows a loss."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from gate import run as gate_run
from gate.compare import baseline
from gate.compare.record import Baseline
from gate.conclude import conclude, stored
from gate.observe import seals, store
from gate.plan import plan_hash
from gate.progress import Ui
from gate.report import terminal
from tests.gate.compare.conftest import Keep
from tests.gate.compare.test_comparison import ahead


def last(folder: Path, run: Any) -> Baseline | None:
    return baseline.last_accepted(folder.parent, run.plan, run.machine)


def named(found: Baseline | None) -> str | None:
    return None if found is None else found.run_id


def test_the_newest_accepted_grid_of_the_same_recipe_and_machine(keep: Keep, build: Any) -> None:
    run = build.run(ahead(0.2))
    folder = keep(run, "20260101")
    assert named(last(folder, run)) == "20260101"
    keep(run, "20260102")
    assert named(last(folder, run)) == "20260102"
    keep(build.run(lambda leg: 0.8 if leg.arm == "candidate" else 1.0), "20260103")  # FAIL
    keep(build.run(ahead(0.2), workload={"output_tokens": 9}), "20260104")
    keep(dataclasses.replace(run, machine={"cpu": "Other"}), "20260105")
    keep(run, "20260106", candidate=run.plan.candidate.model_copy(update={"kind": "url", "argv": None}))
    keep(run, "20260107", candidate=run.plan.candidate.model_copy(update={"kind": "vllm"}))
    (keep(run, "20260108") / "complete.json").unlink()
    damaged = keep(run, "20260109") / "legs" / run.plan.legs[0].leg_id / "requests.parquet"
    damaged.write_bytes(b"")
    assert named(last(folder, run)) == "20260102"


def test_a_grid_that_passed_by_a_bound_is_no_baseline(keep: Keep, build: Any) -> None:
    """It has no figures there: taken in place of the older one, it would hide a loss."""
    run = build.run(ahead(0.2))
    folder = keep(run, "20260101")
    bounded = keep(
        build.run(lambda leg: (2.0 if leg.arm == "candidate" else 1.0) * (0.8 if leg.repetition else 1)), "b"
    )
    assert json.loads((bounded / seals.COMPLETE).read_bytes())["verdict"] == "PASS"
    assert named(last(folder, run)) == "20260101"


def test_a_run_carries_its_baseline_and_derives_the_same_report_without_it(keep: Keep, build: Any) -> None:
    run = build.run(ahead(0.4))
    first = keep(run, "20260101")
    second = keep(build.run(ahead(0.2)), "20260102", baseline=last(first, run), whole=True)
    found = stored(second).regression
    assert found is not None
    assert (found.verdict, found.run_id, stored(second).exit_code) == ("loss", "20260101", 0)
    before = (second / "report.json").read_bytes()
    first.rename(first.with_name("gone"))
    conclude(second)
    assert (second / "report.json").read_bytes() == before


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_every_report_shows_a_loss(keep: Keep, build: Any, name: str) -> None:
    run = build.run(ahead(0.4))
    first = keep(run, "20260101")
    second = keep(build.run(ahead(0.2)), "20260102", baseline=last(first, run), whole=True)
    assert "LOSS against the last accepted grid, 20260101" in (second / name).read_text().replace("\\", "")
    line = next(one for one in terminal.render(stored(second)).splitlines() if one.startswith("regression"))
    assert "LOSS against the last accepted grid, 20260101" in line


def test_no_regression_is_one_quiet_line(keep: Keep, build: Any) -> None:
    run = build.run(ahead(0.2))
    first = keep(run, "20260101")
    shown = terminal.render(stored(keep(run, "20260102", baseline=last(first, run), whole=True)))
    assert next(line for line in shown.splitlines() if line.startswith("regression")).split()[1] == "none:"


def test_an_edited_baseline_is_found(keep: Keep, build: Any) -> None:
    run = build.run(ahead(0.2))
    second = keep(run, "20260102", baseline=last(keep(run, "20260101"), run))
    path = second / store.BASELINE
    path.write_text(path.read_text().replace("20260101", "20260100"))
    with pytest.raises(store.StorageError, match=r"baseline.json was changed after the run was finished"):
        conclude(second)


def test_a_run_of_a_host_without_one_has_none(keep: Keep, build: Any) -> None:
    folder = keep(build.run(), "20260101", whole=True)
    assert stored(folder).regression is None
    assert "regression" not in terminal.render(stored(folder))


def test_a_run_begins_by_looking_for_it(keep: Keep, build: Any) -> None:
    run = build.run(ahead(0.2))
    place = store.Store(keep(run, "20260101").with_name("20260102"))
    plan = run.plan.model_copy(update={"plan_id": plan_hash(run.plan)})
    place.create(plan, store.RunFile(run_id="20260102", host="box", started_at=run.started_at, machine=run.machine))
    gate_run.bring(plan, run.machine, place, Ui())
    assert named(store.read_run(place.folder).baseline) == "20260101"
