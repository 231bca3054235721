"""`gate calibrate` of scripted servers: what is run, what is counted, what a run makes of the band."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from gate import checks
from gate import run as gate_run
from gate.calibration import calibrate as calibration
from gate.calibration import history
from gate.calibration.record import BandRecord
from gate.conclude import conclude, stored
from gate.errors import PreconditionError, UsageError
from gate.inputs import Asked
from gate.observe import seals
from gate.progress import Ui
from gate.runs import find
from tests.gate.bench import fake
from tests.ports import free_port

RECIPE = """
schema_version = 1
name = "fakes"
gpu = false
[checkpoint]
path = "{checkpoint}"
[workload]
prompt_tokens = 12
output_tokens = 6
[protocol]
concurrency = [1]
repetitions = 2
max_spread = 1000.0
ready_timeout_s = 60
[candidate]
kind = "{candidate}"
[oracle]
kind = "{oracle}"
platform = "cpu"
"""


class Bench:
    def __init__(self, folder: Path, checkpoint: Path) -> None:
        self.out = folder / "results"
        recipe = folder / "fakes.toml"
        text = RECIPE.format(checkpoint=checkpoint, candidate=fake("good"), oracle=fake())
        recipe.write_text(text, encoding="utf-8")
        self.asked = Asked(recipe=str(recipe), port=free_port())

    def calibrate(self, gates: int, arm: Any = "oracle", **changes: Any) -> int:
        return calibration.calibrate(dataclasses.replace(self.asked, **changes), arm, gates, self.out, Ui())

    @property
    def runs(self) -> list[Path]:
        return sorted(path.parent for path in self.out.glob("*/*/plan.json"))

    @property
    def bands(self) -> list[BandRecord]:
        paths = sorted(self.out.glob(f"*/{history.BANDS}/*.json"))
        return [BandRecord.model_validate_json(path.read_bytes()) for path in paths]


@pytest.fixture
def bench(tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(gate_run, "calibrate", lambda: None)
    monkeypatch.setattr(gate_run, "preflight", lambda _plan, _out: ())
    monkeypatch.setattr(checks, "CHECKS", ())  # what else this machine does while tests run is not the subject
    monkeypatch.setenv("GATE_LOCK_DIR", str(tmp_path / "locks"))
    return Bench(tmp_path, tiny_checkpoint)


def test_missing_gates_are_run_and_a_run_takes_their_band(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.calibrate(2) == 0
    assert len(bench.runs) == 2
    (band,) = bench.bands
    assert [gate.run_id for gate in band.gates] == [folder.name for folder in bench.runs]
    assert "2 gates, fewer than 8" in capsys.readouterr().out
    cell = band.cell("output_throughput", 1)
    assert cell is not None
    assert (cell.gates + cell.void, cell.primary) == (2, True)

    assert bench.calibrate(3) == 0  # one more, and the same file
    assert len(bench.runs) == 3
    (band,) = bench.bands
    assert len(band.gates) == 3

    gate_run.run(dataclasses.replace(bench.asked, candidate=fake()), bench.out, Ui())
    report = stored(find(None, bench.out))
    assert report.band is not None
    assert report.band.band_id == band.band_id
    assert f"prior of band {band.band_id[:12]}, 3 A/A gates of this host" in capsys.readouterr().out

    path = next(bench.out.glob(f"*/{history.BANDS}/*.json"))
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"gates": 3', '"gates": 8'), encoding="utf-8")
    assert history.nearest(path.parents[1], band.recipe, band.key) is None  # it is not what its id says
    path.write_text(text, encoding="utf-8")
    assert history.nearest(path.parents[1], band.recipe, band.key) == band
    other = band.key.model_copy(update={"oracle_kind": "another"})
    assert history.nearest(path.parents[1], band.recipe, other) is None  # recorded for its observed rates alone

    governed = band.key.model_copy(update={"machine": {**band.key.machine, "cpu_governor": "made up"}})
    assert history.nearest(path.parents[1], band.recipe, governed) == band
    assert history.gates(path.parents[1], governed) == ()  # of another governor, or of nobody knows which

    moved = find(None, bench.out).rename(bench.out.parent / "elsewhere")  # away from the host's folder
    assert conclude(moved).band == report.band

    before = len(history.gates(path.parents[1], band.key))
    shutil.copytree(bench.runs[0], bench.runs[0].with_name("a-copy"))
    assert len(history.gates(path.parents[1], band.key)) == before >= len(band.gates)


def test_an_interrupted_calibration_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run_leg, ran = gate_run.run_leg, []

    def cut(*arguments: Any, **named: Any) -> Any:
        if len(ran) == 5:
            raise KeyboardInterrupt
        ran.append(arguments[1].leg_id)
        return run_leg(*arguments, **named)

    monkeypatch.setattr(gate_run, "run_leg", cut)
    assert bench.calibrate(2) == 130
    assert not bench.bands
    assert [seals.is_complete(folder) for folder in bench.runs] == [True, False]
    monkeypatch.setattr(gate_run, "run_leg", run_leg)
    assert bench.calibrate(2) == 0
    assert [seals.is_complete(folder) for folder in bench.runs] == [True, True]
    assert len(bench.bands[0].gates) == 2


def test_an_unfinished_gate_of_other_levels_is_not_gone_on_with(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, build: Any
) -> None:
    narrow = dataclasses.replace(build.run(), finished_at=None)
    assert narrow.plan.recipe.protocol.concurrency == (1, 2)
    begun = history.Gate(Path("begun"), narrow, complete=False)
    ran: list[str] = []

    def note(name: str) -> int:
        ran.append(name)
        return 0

    monkeypatch.setattr(history, "gates", lambda *_: (begun,))
    monkeypatch.setattr(calibration, "run", lambda *_: note("new"))
    monkeypatch.setattr(calibration, "resume", lambda folder, _ui: note(folder.name))
    for levels in ("1", "1,4"):
        with pytest.raises(PreconditionError):
            bench.calibrate(2, concurrency=levels)
    assert ran == ["begun", "begun", "new", "new"]


def test_each_arm_has_a_history_of_its_own(bench: Bench) -> None:
    bench.calibrate(2)
    bench.calibrate(2, "candidate")
    assert len(bench.runs) == 4
    assert len(bench.bands) == 2
    commands = [" ".join(band.key.oracle_argv or ()) for band in bench.bands]
    assert {command.rsplit(" ", 1)[1] for command in commands} == {"instant", "good"}


def test_what_cannot_be_calibrated_is_said_before_anything_starts(bench: Bench) -> None:
    with pytest.raises(UsageError, match=r"the oracle is http://127\.0\.0\.1:1; expected a server"):
        bench.calibrate(2, oracle="http://127.0.0.1:1")
    with pytest.raises(UsageError, match="--gates 1; expected 2 or more"):
        bench.calibrate(1)
    assert not bench.runs


def test_no_complete_gate_no_band(bench: Bench, tmp_path: Path) -> None:
    bench.calibrate(2)
    (band,) = bench.bands
    with pytest.raises(PreconditionError, match="no A/A gate was completed"):
        calibration.fit_history("fakes", tmp_path / "empty", band.key)
