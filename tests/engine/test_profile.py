"""The profiling switch: no routes without it; with it, a window is one Chrome trace that a reader finds whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine.errors import PreconditionError
from engine.profile import SWITCH, ProfileError, WindowProfiler, profiler
from engine.server import profiling


def test_without_the_switch_there_is_nothing() -> None:
    assert profiler() is None
    assert profiling.routes() == []


def test_a_folder_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(SWITCH, str(tmp_path / "gone"))
    with pytest.raises(PreconditionError, match="no such folder"):
        profiler()


def test_a_window_is_one_trace(tmp_path: Path) -> None:
    windows = WindowProfiler(tmp_path)
    windows.start()
    torch.ones(8) @ torch.ones(8)
    path = windows.stop()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert "traceEvents" in json.loads(path.read_bytes())
    windows.start()
    assert windows.stop() != path


def test_starts_and_stops_alternate(tmp_path: Path) -> None:
    windows = WindowProfiler(tmp_path)
    with pytest.raises(ProfileError, match="no profile is running"):
        windows.stop()
    windows.start()
    with pytest.raises(ProfileError, match="a profile is running"):
        windows.start()
    windows.stop()
