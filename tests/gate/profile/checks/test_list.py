"""The list of checks: a code like the file, a docstring in the fixed form, a test, and its row in docs/profile.md."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from gate.checks.base import SECTIONS
from gate.profile.checks import CHECKS

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.CODE)
def test_form(check: ModuleType) -> None:
    stem = Path(check.__file__ or "").stem
    assert stem.replace("_", "-") == check.CODE
    assert (Path(__file__).parent / f"test_{stem}.py").is_file()
    lines = (check.__doc__ or "").splitlines()
    assert [line for line in lines if line in SECTIONS] == list(SECTIONS)


def test_the_page_has_each_with_what_it_does() -> None:
    page = (ROOT / "docs" / "profile.md").read_text(encoding="utf-8")
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    does = {row[0].strip("`"): row[2] for row in rows if row[0].strip("`") in {check.CODE for check in CHECKS}}
    assert {code: what == "refuses" for code, what in does.items()} == {c.CODE: c.REFUSES for c in CHECKS}


def test_every_file_is_in_the_list() -> None:
    files = {p.stem for p in (ROOT / "gate" / "profile" / "checks").glob("*.py")} - {"__init__", "evidence"}
    assert files == {Path(check.__file__ or "").stem for check in CHECKS}  # type: ignore[attr-defined]
