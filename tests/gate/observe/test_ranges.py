from __future__ import annotations

import contextlib

import nvtx
import pytest

from gate.observe.ranges import SWITCH, leg_range


def test_ranges_are_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(leg_range("000-oracle-c1-r0"), contextlib.nullcontext)
    monkeypatch.setenv(SWITCH, "1")
    with leg_range("000-oracle-c1-r0") as made:
        assert isinstance(made, nvtx.annotate)
