"""Every folder of tests/cases: the smallest input that once made a wrong number, and what the gate must say of it."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gate.judge import judge
from gate.observe.rows import Verdict
from gate.report import html, jsonfile, markdown, plots, terminal
from gate.selftest import refusals
from gate.selftest.cases import FOLDER, differences, folders, load

CASES = folders()
KINDS = {"fault", "stream", *refusals.KINDS}
KEYS = {"title", "source", "class", "acceptance", "good", "recipe", "expect", *KINDS}
CLASSES = {
    "pins",
    "denominator",
    "profile",
    "build",
    "records",
    "request-set",
    "first-token",
    "token-accounting",
    "input-length",
    "failures",
    "tokens",
    "correctness",
    "contention",
    "clocks",
    "machine",
    "memory",
    "caches",
    "load",
    "statistics",
    "verdict",
    "bookkeeping",
}
ELSEWHERE = tomllib.loads((FOLDER / "elsewhere.toml").read_text(encoding="utf-8"))["fault"]
RECORDED, PUBLIC, ACCEPTANCE = 60, 30, 20
"""Least numbers of folders by origin; and the acceptance cases, each with the smallest input that was agreed on."""


@pytest.mark.parametrize("folder", CASES, ids=lambda path: path.name)
def test_case(folder: Path) -> None:
    assert differences(load(folder)) == []


@pytest.mark.parametrize("folder", CASES, ids=lambda path: path.name)
def test_a_case_is_written_as_the_readme_says(folder: Path) -> None:
    case = load(folder)
    assert set(case) <= KEYS
    assert {"title", "source", "class", "expect"} <= set(case)
    assert case["source"] in ("recorded", "constructed") or case["source"].startswith("https://")
    assert case["class"] in CLASSES
    assert len(KINDS & set(case)) == 1


def test_no_ratio_of_a_void_run_reaches_a_page(build: Any) -> None:
    """A candidate 1.234 times as fast, in a run that is void as a whole, through every printer."""
    run = build.run(lambda leg: 1.234 if leg.arm == "candidate" else 1.0)
    clean = judge(run)
    void = judge(build.alter_identity(run, "oracle", kv_cache_dtype="fp8"))
    assert {c.verdict for c in void.cells} == {Verdict.VOID}
    for shown, report in ((True, clean), (False, void)):
        pages = [html.render(report), jsonfile.render(report), markdown.render(report)]
        texts = [*pages, *plots.render(report).values(), terminal.render(report, all_cells=True)]
        assert any("1.234" in text for text in texts) == shown


def test_there_are_as_many_cases_as_folders() -> None:
    folders_there = {path for path in FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert set(CASES) == folders_there
    sources = [load(folder)["source"] for folder in CASES]
    assert sources.count("recorded") >= RECORDED
    assert sum(source.startswith("https://") for source in sources) >= PUBLIC


def test_no_two_cases_are_one() -> None:
    """The same input twice under two names is one case."""
    inputs = [{key: load(folder)[key] for key in KINDS | {"recipe", "good"} if key in load(folder)} for folder in CASES]
    assert len({repr(sorted(one.items())) for one in inputs}) == len(inputs)


@pytest.mark.parametrize("number", range(1, ACCEPTANCE + 1))
def test_every_acceptance_case_is_there(number: int) -> None:
    assert number in {entry.get("acceptance") for entry in (*map(load, CASES), *ELSEWHERE)}


@pytest.mark.parametrize("entry", ELSEWHERE, ids=lambda entry: entry["test"].partition("::")[2])
def test_what_is_shown_elsewhere_is_shown_there(entry: dict[str, Any]) -> None:
    assert set(entry) - {"acceptance"} == {"title", "source", "class", "test", "shown"}
    assert entry["class"] in CLASSES
    path, _, name = entry["test"].partition("::")
    tree = ast.parse((FOLDER.parents[1] / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
