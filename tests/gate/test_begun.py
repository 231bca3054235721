"""What each command that measures says before it does: the name to ask for it by, and what preflight doubts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from gate import run as gate_run
from gate import runs
from gate.inputs import Asked
from gate.observe.rows import Finding
from gate.preflight import host_idle
from gate.profile import flow as profile
from gate.profile import tools
from gate.progress import Ui
from gate.startup import flow as startup
from gate.sweep import flow as sweep
from gate.sweep.points import points
from gate.tokenrun import flow as tokens
from tests.gate.bench import Bench, fake, interrupted

DOUBT = Finding(code="foreign-load", message="half of the cores were busy", hint="stop other work")

COMMANDS: dict[str, Callable[[Asked, Path], object]] = {
    "run": lambda asked, out: gate_run.run(asked, out, Ui()),
    "sweep": lambda asked, out: sweep.run(asked, points("20", "", "0"), 1, out, Ui()),
    "startup": lambda asked, out: startup.run(asked, None, out, Ui()),
    "tokens": lambda asked, out: tokens.run(asked, 1, 2, out, Ui()),
    "profile": lambda asked, out: profile.profile(asked, profile.ProfileAsked(), out, Ui()),
}


@pytest.fixture
def asked(tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Of servers that are never started: each command is cut where it would begin with them."""
    monkeypatch.setenv("GATE_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setattr(gate_run, "calibrate", lambda: None)
    monkeypatch.setattr(tools, "choose", lambda _backend: ("cupti", ""))
    monkeypatch.setattr(tools, "check_recipe", lambda _recipe: None)
    monkeypatch.setattr(profile, "capture", interrupted)
    for flow in (gate_run, sweep, startup, tokens):
        monkeypatch.setattr(flow, "measure", interrupted)
    for flow in (gate_run, sweep, startup, tokens, profile):
        monkeypatch.setattr(flow, "preflight", lambda _plan, _out: (DOUBT,))
    return Bench(tmp_path, tiny_checkpoint).asked(fake(), fake())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_its_folder_and_every_doubt_before_it_measures(
    asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        COMMANDS[command](asked, tmp_path / "results")
    plans = [path for name in ("plan", "*-plan", "profile") for path in (tmp_path / "results").rglob(f"{name}.json")]
    (folder,) = {path.parent for path in plans}
    said = capsys.readouterr().err.splitlines()
    at = said.index(f"run {folder.name}")
    assert at == (0 if command in ("sweep", "profile") else 1)  # after the line on the plan, where there is one
    assert said[at + 1] == "note: half of the cores were busy; stop other work"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run", ["2 repetitions, fewer than 3", "declared concurrencies not measured: 1"]),
        ("tokens", ["1 run by the oracle, fewer than 3", "declared concurrencies not asked: 1"]),
    ],
)
def test_what_the_command_line_leaves_out_is_said_before_it_costs_time(
    asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, said: list[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        COMMANDS[command](dataclasses.replace(asked, concurrency="2"), tmp_path / "results")
    told = [line for line in capsys.readouterr().err.splitlines() if "indicative" in line]
    assert told == [f"note: the result will be indicative: {why}" for why in said]


@pytest.mark.parametrize("busy", [True, False])
def test_a_busy_host_is_said_to_void_what_is_timed(
    asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    found = host_idle.judge(1.0 if busy else 0.1)
    monkeypatch.setattr(gate_run, "preflight", lambda _plan, _out: found)
    with pytest.raises(KeyboardInterrupt):
        COMMANDS["run"](asked, tmp_path / "results")
    assert ("all cells but tokens will very likely be VOID (foreign-load)" in capsys.readouterr().err) is busy
    with pytest.raises(KeyboardInterrupt):
        gate_run.resume(runs.find(None, tmp_path / "results"), Ui())
    assert ("very likely be VOID" in capsys.readouterr().err) is busy


@pytest.mark.parametrize(("command", "resume"), [("run", gate_run.resume), ("tokens", tokens.resume)])
def test_a_resumed_one_says_it_again(
    asked: Asked,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    resume: Callable[[Path, Ui], object],
) -> None:
    with pytest.raises(KeyboardInterrupt):
        COMMANDS[command](asked, tmp_path / "results")
    folder = runs.find(None, tmp_path / "results")
    capsys.readouterr()
    with pytest.raises(KeyboardInterrupt):
        resume(folder, Ui())
    assert capsys.readouterr().err.splitlines()[:2] == [
        f"run {folder.name}",
        "note: half of the cores were busy; stop other work",
    ]
