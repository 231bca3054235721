"""A source folder on the path that is not installed: said in one line, by both products."""

from __future__ import annotations

import importlib.metadata

import pytest

from engine import manifest
from engine.errors import PreconditionError as EngineError
from gate.errors import PreconditionError
from gate.observe import installed, machine


@pytest.fixture
def _uninstalled(monkeypatch):
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_what_is_installed_has_a_version():
    assert installed.version("gate-and-engine") == manifest.version()


@pytest.mark.usefixtures("_uninstalled")
def test_a_run_from_a_source_folder_is_refused_in_one_line():
    with pytest.raises(PreconditionError, match="gate-and-engine is on the path and not installed"):
        machine.machine()
    with pytest.raises(EngineError, match=r"not installed: pip install --editable \."):
        manifest.version()
