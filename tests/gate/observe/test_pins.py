"""The second look at what was pinned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gate.errors import OracleError
from gate.observe import pins
from gate.preflight.digest import digest
from oracle.verify import Difference


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


def planned(build: Any, folder: Path, kind: str) -> Any:
    plan = build.run().plan
    arms = {
        "candidate": plan.candidate.model_copy(update={"checkpoint": str(folder)}),
        "oracle": plan.oracle.model_copy(update={"checkpoint": str(folder), "kind": kind}),
    }
    return plan.model_copy(update=arms)


def test_a_change_on_disk_shows(build: Any, folder: Path) -> None:
    plan = planned(build, folder, "command")
    before = pins.look(plan, "start")
    assert before.checkpoints == dict.fromkeys(("candidate", "oracle"), digest(folder))
    assert (before.when, before.oracle, before.oracle_differs) == ("start", {}, ())
    (folder / "config.json").write_text('{"changed": true}')
    assert pins.look(plan, "end").checkpoints != before.checkpoints


def test_a_folder_that_is_gone_is_written_down(build: Any, folder: Path) -> None:
    plan = planned(build, folder / "gone", "command")
    assert set(pins.look(plan, "end").checkpoints.values()) == {pins.GONE}


def test_an_attached_arm_has_no_folder_here(build: Any, folder: Path) -> None:
    assert set(pins.look(planned(build, folder, "url"), "end").checkpoints) == {"candidate"}


def test_the_oracles_packages(build: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(pin: Any, _environment: object) -> Any:
        return type(
            "Verified",
            (),
            {
                "versions": dict.fromkeys(pin.identity, "1") | {"rich": "2"},
                "differences": (Difference("torch", "2", "1"),),
            },
        )

    monkeypatch.setattr(pins.environment, "require", lambda _platform: object())
    monkeypatch.setattr(pins, "compare", compare)
    found = pins.look(planned(build, folder, "vllm"), "end")
    assert "flashinfer-python" in found.oracle
    assert "rich" not in found.oracle
    assert found.oracle_differs == ("torch is 1, pinned 2",)


def test_an_environment_that_is_gone_is_written_down(build: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_platform: str) -> None:
        raise OracleError("the oracle is not installed", hint="install it")

    monkeypatch.setattr(pins.environment, "require", gone)
    (said,) = pins.look(planned(build, folder, "vllm"), "end").oracle_differs
    assert said.startswith("the oracle is not installed")
