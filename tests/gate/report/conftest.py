"""`golden`: the module that makes the golden report, and the folder it lies in."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


@pytest.fixture(scope="session")
def golden() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_write", GOLDEN / "write.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
