"""A recipe that wants a GPU where there is none: every command says so before it fetches anything, a plan is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gate import run as gate_run
from gate.calibration.calibrate import calibrate
from gate.errors import PreconditionError
from gate.inputs import Asked, plan_to_show
from gate.progress import Ui
from gate.startup import flow as startup_flow
from gate.sweep import flow as sweep_flow
from gate.sweep.points import points
from gate.tokenrun import flow as token_flow


@pytest.mark.parametrize("command", ["run", "tokens", "startup", "sweep", "calibrate"])
def test_a_machine_without_the_device_is_told_before_any_checkpoint_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("gate.lock.gpu.gpus", list)
    monkeypatch.setattr("gate.preflight.checkpoint.resolve", lambda *_: pytest.fail("went on to the checkpoint"))
    asked, ui = Asked(recipe="qwen3.6-27b-nvfp4"), Ui()
    flows: dict[str, Callable[[], int]] = {
        "run": lambda: gate_run.run(asked, tmp_path, ui),
        "tokens": lambda: token_flow.run(asked, 3, tmp_path, ui),
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
    assert lacks is not None
    assert lacks.startswith("nvidia/Qwen3.6-27B-NVFP4 is not in the local cache: ")
    assert made.oracle.argv is not None
    assert made.oracle.argv[1] == "nvidia/Qwen3.6-27B-NVFP4"
    assert len(made.legs) == 2 * 2 * 3
    unread = {text for leg in made.all_legs for text in (leg.prompts_sha256, leg.warmup_sha256)}
    assert unread == {made.plan_id} == {""}
    assert (made.vocabulary.size, made.candidate.checkpoint_digest) == (0, None)
