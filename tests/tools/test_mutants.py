"""tools/mutants.py: what it says of a mutant that no test notices, and that none of the quick ones survives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def mutants(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools/mutants.py"), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_predicates_made_constant_and_the_verdicts_conditions_fail_some_test() -> None:
    done = mutants("--quick")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_survivor_is_named_with_its_place_and_its_change() -> None:
    """The tests of another check notice a check that always finds something, and not one that never does."""
    done = mutants("gate/checks/spread.py", "--quick", "--tests", "tests/gate/checks/test_lock_lost.py")
    assert done.returncode == 1, done.stderr
    assert "2 of 2 mutants tried: 1 survived" in done.stdout
    text = (ROOT / "gate/checks/spread.py").read_text()
    line = 1 + text[: text.index("    protocol =")].count("\n")
    assert f"gate/checks/spread.py:{line}: survived (never)" in done.stdout
    assert "+    return\n" in done.stdout


def test_nothing_to_change_is_said() -> None:
    done = mutants("gate/no_such.py")
    assert done.returncode == 1
    assert "nothing to change in gate/no_such.py" in done.stderr
