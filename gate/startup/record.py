"""8 What `gate startup` leaves behind: what was planned, and what it came to. starts.parquet holds the raw records."""

from __future__ import annotations

from typing import Literal

from gate.observe.rows import CacheState, Finding, Row, StartRow, Verdict
from gate.plan import Plan
from gate.report.model import Cell


class StartupPlan(Row):
    """startup-plan.json, written before the first start."""

    schema_version: Literal[1] = 1
    name: str
    host: str
    started_at: str
    machine: dict[str, str]
    wanted_cache: CacheState | None
    """None: as it was found."""
    plan: Plan
    findings: tuple[Finding, ...] = ()
    sealed: bool = False
    """Its raw files are announced in records.sha256; False in the files of versions that announced none."""


class StartupReport(Row):
    """startup.json."""

    schema_version: Literal[1] = 1
    name: str
    host: str
    recipe: str
    started_at: str
    machine: dict[str, str]
    wanted_cache: CacheState | None
    repetitions: int
    """Planned."""
    unfinished: bool = False
    """Cut short: fewer starts than planned."""
    ended: str | None = None
    """Why, as it said itself."""
    starts: tuple[StartRow, ...]
    """In the order they were made."""
    cells: tuple[Cell, ...]
    """One for each of port_open_s, ready_s and first_token_s; the last one decides."""
    findings: tuple[Finding, ...] = ()
    verdict: Verdict
    exit_code: int
