"""`good`: evidence of a profile that nothing is wrong with, from the recorded 27B table; and a way to break it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gate.observe.rows import ARMS, Arm, Finding
from gate.profile import checks
from gate.profile.checks.evidence import Evidence
from gate.profile.difference import step_table
from gate.profile.levers import Drift
from gate.profile.rows import StepTable, Window
from tests.gate.profile.tables import fixture, wall, windows

ROWS = fixture("vllm-0.25.0-h200-27b-b1")["rows"]
STEP_US = sum(us for us, _, _ in ROWS)


def evidence(change: Callable[[Window], dict[str, Any]] = lambda _: {}) -> Evidence:
    """Both arms alike, closing on a wall time 0.5 % above the kernels; `change` says what to alter of each window."""
    made: list[Window] = []
    tables: dict[Arm, StepTable] = {}
    for arm in ARMS:
        pair = [w.model_copy(update=change(w)) for w in windows(ROWS, arm=arm)]
        made += pair
        tables[arm] = step_table("vllm", pair[0], pair[1], wall(STEP_US * 1.005), None)
    return Evidence(tuple(made), tables, Drift(0.001, "synthetic"))


@pytest.fixture
def good() -> Evidence:
    return evidence()


@pytest.fixture
def found() -> Callable[[Evidence], tuple[Finding, ...]]:
    """Findings of every check: a fault has its own code and no other's."""
    return checks.findings


def with_tables(good: Evidence, change: Callable[[StepTable], dict[str, Any]]) -> Evidence:
    return replace(good, tables={arm: t.model_copy(update=change(t)) for arm, t in good.tables.items()})
