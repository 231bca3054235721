"""The layers, as the interpreter sees them: what an import pulls in, the import contracts, and that tests are found."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {
    "torch",
    "vllm",
    "engine",
    "transformers",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "matplotlib",
    "huggingface_hub",
}
"""Packages that cost a command line its quick --help, or cross the line between judge and judged."""


@functools.cache
def imported(module: str) -> set[str]:
    """Top-level packages that a fresh interpreter holds after importing the module."""
    code = f"import json, sys, {module}; print(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("module", ["gate.cli", "oracle.cli", "gate.run", "gate.judge"])
def test_the_gate_loads_neither_the_engine_nor_a_model_library(module: str) -> None:
    assert imported(module) & {"torch", "vllm", "engine", "transformers"} == set()


@pytest.mark.parametrize("module", ["gate.cli", "oracle.cli"])
def test_a_command_line_loads_nothing_heavy(module: str) -> None:
    assert imported(module) & HEAVY == set()


@pytest.mark.parametrize("module", ["engine.cli", "engine.server.app"])
def test_the_engine_does_not_know_its_judge(module: str) -> None:
    assert imported(module) & {"gate", "oracle", "vllm", "transformers"} == set()


@pytest.mark.parametrize("module", ["engine.scheduler", "engine.config", "engine.request", "engine.batch"])
def test_above_the_runner_the_engine_is_plain_python(module: str) -> None:
    assert imported(module) & {"torch", "numpy"} == set()


def test_the_import_contracts_hold() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


def test_every_test_is_collected(request: pytest.FixtureRequest) -> None:
    """A test that pytest never finds passes for ever: compare this run's collection with the source, file by file."""
    if request.config.option.keyword or request.config.option.markexpr or request.config.option.deselect:
        pytest.skip("a run of selected tests cannot tell what is collected")
    collected: dict[Path, set[str]] = {}
    for item in request.session.items:
        collected.setdefault(item.path, set()).add(item.nodeid.split("::")[1].partition("[")[0])
    whole = request.config.args in ([str(ROOT / "tests")], ["tests"])
    for path in sorted((ROOT / "tests").rglob("test_*.py") if whole else collected):
        if any("::" in argument for argument in request.config.args):
            pytest.skip("a run of single tests cannot tell what is collected")
        assert written_tests(path) == collected.get(path, set()), path.relative_to(ROOT)


def written_tests(path: Path) -> set[str]:
    """Names of the top-level tests in a file; a name that is bound twice would hide the first test."""
    names: list[str] = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names.append(node.targets[0].id)
    twice = [name for name, count in Counter(names).items() if count > 1 and name.lower().startswith("test")]
    assert twice == [], f"{path.relative_to(ROOT)} defines {twice} twice: the first one never runs"
    return {name for name in names if name.startswith(("test_", "Test"))}


@pytest.mark.parametrize("folder", ["gate", "oracle", "engine"])
def test_no_module_is_longer_than_400_lines_or_without_a_first_line(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        lines = path.read_text().splitlines()
        assert len(lines) <= 400, f"{path.relative_to(ROOT)} has {len(lines)} lines"
        if path.name == "__init__.py" and not lines:
            continue
        assert lines, f"{path.relative_to(ROOT)} is empty"
        assert lines[0].startswith(('"""', 'r"""')), f"{path.relative_to(ROOT)} does not say its job in its first line"
