"""All that the gate says of every case, compared with tests/cases/findings.txt: a changed message or number shows."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from gate.selftest.cases import FOLDER, folders


def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tests_cases_write", FOLDER / "write.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRITER = writer()
PARTS = WRITER.parts()
NAMES = [WRITER.GOOD, *(folder.name for folder in folders())]


@pytest.mark.parametrize("name", NAMES)
def test_everything_that_is_said_of_a_case(name: str) -> None:
    """When it is meant: python tests/cases/write.py."""
    assert WRITER.said(name) == PARTS.get(name, "nothing yet: python tests/cases/write.py")


def test_the_file_has_no_other_part() -> None:
    assert set(PARTS) == set(NAMES)
