"""Every folder of tests/cases: the smallest input that once made a wrong number, and what the gate must say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gate.judge import judge
from gate.observe.rows import Verdict
from gate.report import html, jsonfile, markdown, plots, terminal
from gate.selftest.cases import FOLDER, differences, folders, load

CASES = folders()
KEYS = {"title", "source", "good", "recipe", "fault", "stream", "expect"}


@pytest.mark.parametrize("folder", CASES, ids=lambda path: path.name)
def test_case(folder: Path) -> None:
    assert differences(load(folder)) == []


@pytest.mark.parametrize("folder", CASES, ids=lambda path: path.name)
def test_a_case_is_written_as_the_readme_says(folder: Path) -> None:
    case = load(folder)
    assert set(case) <= KEYS
    assert {"title", "source", "expect"} <= set(case)
    assert case["source"] == "recorded" or case["source"].startswith("https://")
    assert ("fault" in case) != ("stream" in case)


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
    folders_there = {path for path in FOLDER.iterdir() if path.is_dir()}
    assert set(CASES) == folders_there
    assert len(CASES) >= 50
