"""shell: only a judged run ends with 0 to 3; whatever else happens has another code and says so in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from gate import shell
from gate.errors import StorageError

ROOT = Path(__file__).parents[2]


def raising(error: BaseException) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    def command() -> None:
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (StorageError("found", expected="this", hint="do that"), 69, "gate: found; expected this; do that"),
        (KeyboardInterrupt(), 130, "gate: interrupted"),
        (OSError(28, "No space left on device"), 69, "gate: cannot use standard output: No space left on device"),
        (ZeroDivisionError("x"), 70, "gate: internal error, please report it: ZeroDivisionError: x"),
        (StorageError("red \x1b[31m text"), 69, "gate: red  [31m text"),
    ],
)
def test_code_and_last_line(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gate"])
    monkeypatch.setattr(shell, "quiet", lambda: None)  # pytest's standard output is no file
    assert shell.run(raising(error), "gate") == code
    assert capsys.readouterr().err.splitlines()[-1] == said


@pytest.mark.parametrize(
    "after",
    [
        BufferError("exported pointers exist"),
        OSError(9, "Bad file descriptor"),
        StorageError("the disk is full", hint="free space"),
    ],
)
def test_what_fails_on_the_way_out_of_an_interrupt_is_no_internal_error(
    after: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = typer.Typer()

    @app.command()
    def command() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise after

    monkeypatch.setattr(sys, "argv", ["gate"])
    assert shell.run(app, "gate") == 130
    assert capsys.readouterr().err == f"gate: interrupted; while it ended: {type(after).__name__}: {after}\n"


@pytest.mark.parametrize(
    ("command", "to", "code"),
    [
        ("recipe list", "| true", 0),
        ("recipe list", ">/dev/full", 69),
        ("recipe list", ">&-", 0),
        ("recipe lists", "2>&-", 64),
        ("doctor", ">&- 2>&-", None),  # what this machine lacks decides
        ("plan --recipe absent", ">&- 2>&-", 64),
    ],
)
def test_standard_output_that_takes_nothing_is_no_verdict(command: str, to: str, code: int | None) -> None:
    line = f"set -o pipefail; {sys.executable} -m gate {command} {to}"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in ((0, 69) if code is None else (code,))
    assert "Traceback" not in done.stderr


def test_a_command_that_wants_another_word_shows_its_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    for name in ("one", "two"):
        app.command(name, help=f"The {name}.")(lambda: None)
    monkeypatch.setattr(sys, "argv", ["gate"])
    assert shell.run(app, "gate") == 64
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Usage: ")
    assert [line.split() for line in lines if line.startswith("  ")][-2:] == [
        ["one", "The", "one."],
        ["two", "The", "two."],
    ]
