"""A recipe that wants a GPU where there is none: every command says so before it fetches anything, a plan is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gate import cli
from gate import run as gate_run
from gate.calibration.calibrate import calibrate
from gate.errors import OracleError, PreconditionError
from gate.inputs import Asked, plan_for, plan_to_show
from gate.listing import plan_text
from gate.preflight.checkpoint import Folder
from gate.progress import Ui
from gate.startup import flow as startup_flow
from gate.sweep import flow as sweep_flow
from gate.sweep.points import points
from gate.tokenrun import flow as token_flow
from oracle.serve import deviations


@pytest.mark.parametrize("command", ["run", "tokens", "startup", "sweep", "calibrate"])
def test_a_machine_without_the_device_is_told_before_any_checkpoint_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("gate.lock.gpu.gpus", list)
    monkeypatch.setattr("gate.preflight.checkpoint.resolve", lambda *_: pytest.fail("went on to the checkpoint"))
    asked, ui = Asked(recipe="qwen3.6-27b-nvfp4"), Ui()
    flows: dict[str, Callable[[], int]] = {
        "run": lambda: gate_run.run(asked, tmp_path, ui),
        "tokens": lambda: token_flow.run(asked, 3, 2, tmp_path, ui),
        "startup": lambda: startup_flow.run(asked, None, tmp_path, ui),
        "sweep": lambda: sweep_flow.run(asked, points("8", "8", "0"), 1, tmp_path, ui),
        "calibrate": lambda: calibrate(asked, "oracle", 8, tmp_path, ui),
    }
    with pytest.raises(PreconditionError, match="needs a GPU and NVML shows none"):
        flows[command]()


def test_a_plan_needs_no_device_and_fetches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gate.lock.gpu.gpus", list)
    monkeypatch.setattr("gate.preflight.hub.cached", lambda *_: None)
    monkeypatch.setattr("gate.preflight.hub.download", lambda *_: pytest.fail("fetched a checkpoint"))
    asked = Asked(recipe="qwen3.6-27b-nvfp4", concurrency="1,2", oracle="their-server {model} --port {port}")
    made, lacks = plan_to_show(asked)
    (lack,) = lacks
    assert lack.startswith("nvidia/Qwen3.6-27B-NVFP4 is not in the local cache: ")
    assert made.oracle.argv is not None
    assert made.oracle.argv[1] == "nvidia/Qwen3.6-27B-NVFP4"
    assert len(made.legs) == 2 * 2 * 3
    unread = {text for leg in made.all_legs for text in (leg.prompts_sha256, leg.warmup_sha256)}
    assert unread == {made.plan_id} == {""}
    assert (made.vocabulary.size, made.candidate.checkpoint_digest) == (0, None)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a CUDA oracle that is not installed; no GPU, no checkpoint and no fetching either."""
    monkeypatch.setattr("gate.lock.gpu.gpus", list)
    monkeypatch.setattr("gate.preflight.hub.cached", lambda *_: None)
    monkeypatch.setattr("gate.preflight.hub.download", lambda *_: pytest.fail("fetched a checkpoint"))
    monkeypatch.setattr("oracle.environment.home", lambda *_: tmp_path / "cuda")
    return tmp_path / "cuda"


def test_a_plan_is_shown_where_the_oracle_is_not_installed(nowhere: Path) -> None:
    made, lacks = plan_to_show(Asked(model="nvidia/Qwen3.6-27B-NVFP4", concurrency="1"))
    fetched, installed = lacks
    assert "known once gate run has fetched it" in fetched
    assert installed.startswith(f"the cuda oracle is not installed ({nowhere}); run: gate oracle install cuda; ")
    assert made.oracle.argv is not None
    assert made.oracle.argv[:4] == (f"{nowhere}/bin/python", "-m", "vllm.entrypoints.cli.main", "serve")
    assert deviations("cuda", made.oracle.argv) == ()
    shown = plan_text(made, ("gate", "run"), lacks).splitlines()
    assert shown[0].split() == ["plan", "–"]
    assert shown[1:3] == [f"note       {fetched}", f"note       {installed}"]


@pytest.mark.usefixtures("nowhere")
def test_with_the_checkpoint_here_a_missing_oracle_takes_the_id_alone(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tiny_checkpoint, "d" * 64, 1)
    monkeypatch.setattr("gate.preflight.checkpoint.absent", lambda _: None)
    monkeypatch.setattr("gate.preflight.checkpoint.resolve", lambda _: (folder, folder))
    asked = Asked(recipe="qwen3.6-27b-nvfp4", concurrency="1", coin="oracle")
    made, (lack,) = plan_to_show(asked)
    assert lack.startswith("the cuda oracle is not installed")
    assert (made.plan_id, made.oracle.checkpoint_digest) == ("", "d" * 64)
    assert all(leg.prompts_sha256 and leg.warmup_sha256 for leg in made.all_legs)
    monkeypatch.setattr("gate.inputs.keys", lambda _: ("GPU-1",))
    with pytest.raises(OracleError, match="run: gate oracle install cuda"):
        plan_for(asked)  # what a run begins with
    # Of an attached server nothing has to be installed.
    other, none = plan_to_show(replace(asked, oracle="http://127.0.0.1:9"))
    assert (bool(other.plan_id), none) == (True, ())


def test_a_missing_oracle_is_no_plan_in_json(nowhere: Path) -> None:
    assert not nowhere.exists()
    with pytest.raises(PreconditionError, match=r"is not installed .*without --json it is printed"):
        cli.plan(model="nvidia/Qwen3.6-27B-NVFP4", as_json=True)
