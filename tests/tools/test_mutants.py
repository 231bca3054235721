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


UNSEEN = """
import grimp
from mutants import Bench
from mutations import mutants

bench = object.__new__(Bench)
bench.graph = grimp.build_graph("gate", cache_dir=None)
reached = {"gate/metrics/__init__.py": {"tests/gate/a.py::reaches": [2]}}
bench.base = {"lines": reached, "seconds": {"tests/gate/a.py::reaches": 0.1, "tests/gate/b.py::other": 0.2}}
source = "def seen():\\n    return 1\\n\\n\\ndef unseen():\\n    return 2\\n"
for mutant in mutants("gate/metrics/__init__.py", source):
    if mutant.kind == "return":
        print(mutant.line, *(test for group in bench.groups(mutant, None) for test in group.ids))
"""


def test_what_no_test_is_seen_to_reach_any_may_notice() -> None:
    """A function that only an import calls, as that of the latency axes: with no test to try, each mutant survived."""
    command = [sys.executable, "-c", UNSEEN]
    done = subprocess.run(command, cwd=ROOT / "tools", capture_output=True, text=True, check=False)
    both = "tests/gate/a.py::reaches tests/gate/b.py::other"
    assert done.stdout == f"2 tests/gate/a.py::reaches\n6 {both}\n", done.stderr
