"""Every op folder has its parts, and says which devices it serves."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from engine import ops

FOLDER = Path(ops.__file__).parent


@pytest.mark.parametrize("name", ops.NAMES)
def test_folder_is_complete(name):
    module = importlib.import_module(f"engine.ops.{name}")
    assert module.__doc__
    assert "cpu" in module.DEVICES
    assert importlib.import_module(f"engine.ops.{name}.naive").__doc__
    assert (FOLDER / name / "README.md").read_text().startswith(f"# {name}\n")


def test_missing_kernels_are_named():
    assert ops.missing_kernels("cpu") == ()
    assert ops.missing_kernels("no such device") == ops.NAMES
