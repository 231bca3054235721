"""4 What a sweep leaves behind: its plan, and one value for each point, arm and repetition. Raw: requests.parquet."""

from __future__ import annotations

from typing import Literal

from gate.observe.rows import Arm, Finding, Row
from gate.plan import ArmPlan, PlannedLeg
from gate.recipe import Recipe
from gate.sweep.points import Point


class SweepLeg(Row):
    """One arm at one point in one repetition: one timed request."""

    leg: PlannedLeg
    point: Point


class SweepPlan(Row):
    """sweep-plan.json, written before the first request."""

    schema_version: Literal[1] = 1
    name: str
    host: str
    started_at: str
    machine: dict[str, str]
    recipe: Recipe
    """As it was used: its context raised to what the points need."""
    coin: Arm
    seed: int
    arms: tuple[Arm, ...]
    """Only the candidate in a sweep without an oracle."""
    candidate: ArmPlan
    oracle: ArmPlan | None
    points: tuple[Point, ...]
    repetitions: int
    legs: tuple[SweepLeg, ...]
    findings: tuple[Finding, ...] = ()
    sealed: bool = False
    """Its raw files are announced in records.sha256; False in the files of versions that announced none."""


class SweepSeries(Row):
    """An arm's repetitions at one point."""

    arm: Arm
    values: tuple[float | None, ...]
    """tok/s, one per repetition."""
    mean: float | None
    """Of what was measured; None when a repetition has no value: survivors are no sample."""
    sd: float | None
    """Sample standard deviation; None for fewer than two."""
    faults: tuple[str, ...] = ()
    """Why a repetition has no value, each said once."""


class SweepCell(Row):
    point: Point
    name: str
    unit: str = "tok/s"
    series: tuple[SweepSeries, ...]
    ratio: float | None
    """Mean of the candidate over mean of the oracle; no verdict."""
    doubts: tuple[str, ...] = ()
    """Why its figures are not to be believed: what `gate run` would say VOID for."""


class SweepReport(Row):
    """sweep.json."""

    schema_version: Literal[1] = 1
    name: str
    host: str
    recipe: str
    started_at: str
    machine: dict[str, str]
    arms: tuple[Arm, ...]
    repetitions: int
    complete: bool
    """Every planned value is there."""
    ended: str | None = None
    """Why the sweep ended early, as it said itself."""
    cells: tuple[SweepCell, ...]
    findings: tuple[Finding, ...] = ()
