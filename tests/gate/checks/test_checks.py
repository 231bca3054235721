"""The list itself: a good run is silent, and every check has the fixed form that the docs are made of."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gate.checks import CHECKS, base

FOLDER = Path(base.__file__).parent
NOT_CHECKS = {"__init__", "base", "evidence"}


@pytest.mark.parametrize("tables", [{}, {"protocol": {"repetitions": 1}}, {"protocol": {"repetitions": 4}}])
@pytest.mark.parametrize("coin", ["candidate", "oracle"])
def test_a_good_run_has_no_findings(build: Any, found: Any, coin: Any, tables: Any) -> None:
    assert found(build.run(coin=coin, **tables)) == []


def test_every_file_is_in_the_list_once() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - NOT_CHECKS
    listed = [check.CODE.replace("-", "_") for check in CHECKS]
    assert sorted(listed) == sorted(files)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.CODE)
def test_every_check_explains_itself(check: ModuleType) -> None:
    assert check.__name__.rsplit(".", 1)[1] == check.CODE.replace("-", "_")
    lines = (check.__doc__ or "").splitlines()
    assert lines[0].endswith(".")
    assert [line for line in lines if line in base.SECTIONS] == list(base.SECTIONS)
    assert isinstance(check.TIMING_ONLY, bool)
    assert (Path(__file__).parent / f"test_{check.CODE.replace('-', '_')}.py").is_file()
