"""Reports as golden files: a change of a printer shows as a diff of what people read."""

from __future__ import annotations

from types import ModuleType

import pytest


@pytest.mark.parametrize(
    "name", ["report.json", "report.md", "terminal.txt", "terminal-all.txt", "terminal-colour.txt"]
)
def test_golden(golden: ModuleType, name: str) -> None:
    """When it is meant: python tests/golden/write.py."""
    assert golden.rendered(golden.report())[name] == (golden.HERE / name).read_text()


def test_every_golden_file_is_compared(golden: ModuleType) -> None:
    files = {path.name for path in golden.HERE.iterdir() if path.is_file()} - {"write.py"}
    assert files == set(golden.rendered(golden.report()))
