"""`python -m oracle`: help, exit codes, one line for a user's mistake."""

from __future__ import annotations

import subprocess
import sys

import pytest

from oracle.pins import REPOSITORY


def oracle(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oracle", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_help_lists_the_three_commands() -> None:
    done = oracle("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("install", "verify", "serve"))


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["install", "rocm"], 64, "oracle: oracle platform 'rocm'; expected cpu or cuda"),
        (["install", "cpu", "--from", "/nowhere"], 64, "oracle: --from /nowhere is not a folder"),
        (["install", "--frm", "x"], 64, "No such option"),
        (["vrify"], 64, "No such command 'vrify'"),
    ],
)
def test_a_mistake_is_one_line_and_its_exit_code(arguments: list[str], code: int, line: str) -> None:
    done = oracle(*arguments)
    assert done.returncode == code
    assert line in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
