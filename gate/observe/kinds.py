"""4 The four kinds of folder below results/, by the command that made them, and the files that each has."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Kind = Literal["run", "sweep", "startup", "profile"]
"""A run is `gate run`'s or `gate tokens`'s."""
KINDS: tuple[Kind, ...] = ("run", "sweep", "startup", "profile")
DEEPER: tuple[Kind, ...] = ("sweep", "startup")
"""In a folder of their own below the host's."""
PLANS: dict[Kind, str] = {
    "run": "plan.json",
    "sweep": "sweep-plan.json",
    "startup": "startup-plan.json",
    "profile": "profile.json",
}
"""The file that makes a folder one of its kind, written before anything is measured."""
REPORTS: dict[Kind, str] = {
    "run": "report.json",
    "sweep": "sweep.json",
    "startup": "startup.json",
    "profile": "attribution.json",
}
"""What `gate show` prints."""
RECORDS: dict[Kind, str] = {"sweep": "requests.parquet", "startup": "starts.parquet"}
"""One row for each planned leg that was measured."""
PROFILED = "arms.json"
"""What each arm of a profile said of itself, in the order in which they were traced."""
MEASURED: dict[Kind, tuple[str, ...]] = {
    "run": ("legs/*/legs.parquet", "tokens/answers-*.parquet"),
    "profile": ("windows.parquet",),
    **{kind: (name,) for kind, name in RECORDS.items()},
}
"""Of which there is one as soon as anything was measured."""
RAW: dict[Kind, tuple[str, ...]] = {
    "run": (
        *(PLANS["run"], "run.json", "identities.json", "band.json", "baseline.json"),
        *("margins.parquet", "starts.parquet", "legs/*/*.parquet", "tokens/*.parquet"),
    ),
    "sweep": (PLANS["sweep"], RECORDS["sweep"]),
    "startup": (PLANS["startup"], RECORDS["startup"]),
    "profile": (PLANS["profile"], PROFILED, "census.json", "windows.parquet"),
}
"""Everything that a report is derived from."""
DERIVED: dict[Kind, tuple[str, ...]] = {
    "run": (REPORTS["run"], "report.md", "report.html", "cells.parquet"),
    "sweep": (REPORTS["sweep"], "sweep.md"),
    "startup": (REPORTS["startup"], "startup.md"),
    "profile": (REPORTS["profile"], "profile.md"),
}
"""The parts of a report that every version has sealed which sealed any."""
BESIDE: dict[Kind, tuple[str, ...]] = {
    "run": ("legs.parquet", "requests.parquet", "telemetry.parquet", "*.svg"),
    "sweep": ("*.svg",),
    "startup": (),
    "profile": ("*.svg",),
}
"""What is derived and sealed with them: the gate reads none of it, but people do."""


def kind_of(folder: Path) -> Kind:
    return next((kind for kind in KINDS if (folder / PLANS[kind]).is_file()), "run")


def is_raw(folder: Path, name: str) -> bool:
    """Whether a file of this name below the folder is a raw one. A plan is: it is written before the folder has one."""
    path = Path(name)
    return name in PLANS.values() or any(path.match(pattern) for pattern in RAW[kind_of(folder)])


def raw(folder: Path) -> list[Path]:
    """Those that are there, in the order of RAW."""
    return _there(folder, RAW[kind_of(folder)])


def derived(folder: Path) -> list[Path]:
    """The same of a report, and of what is beside it."""
    kind = kind_of(folder)
    return _there(folder, (*DERIVED[kind], *BESIDE[kind]))


def _there(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))]
