"""The runs under a results folder: by name, by path, or the newest."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path

from gate.errors import UsageError
from gate.observe import digests
from gate.observe.rows import Verdict
from gate.observe.store import COMPLETE, FAILED, PLAN
from gate.recipe import ROOT

RESULTS = ROOT / "results"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of `gate list`; what a run does not have yet is None."""

    folder: Path
    host: str
    run_id: str
    recipe: str | None
    verdict: str | None
    binding: bool | None
    legs: int
    planned: int | None
    complete: bool
    failure: str | None = None
    """Why it ended before its first leg."""
    changed: bool = False
    """Its report is not the one that was written: then it has no verdict here, and `gate show` refuses it too."""


def find(name: str | None, out: Path = RESULTS) -> Path:
    """Folder of a run: a path, a run id, the beginning of one, or None for the newest.

    Raises:
        UsageError: there is none, or several begin like that.
    """
    if name is not None and (Path(name) / PLAN).is_file():
        return Path(name).resolve()  # `gate show .`: the run's own name and its results folder are in the whole path
    folders = _folders(out)
    if not folders:
        raise UsageError(f"no runs under {out.resolve()}", hint="gate run makes one; --out names another folder")
    if name is None:
        return folders[-1]
    matches = [folder for folder in folders if folder.name == name] or [f for f in folders if f.name.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(f"{len(matches)} runs begin with {name!r}", expected="one", hint="give more of its name")
    near = difflib.get_close_matches(name, [folder.name for folder in folders], n=1, cutoff=0.5)
    raise UsageError(
        f"no run {name!r} under {out.resolve()}", hint=f"did you mean {near[0]}?" if near else "gate list shows them"
    )


def entries(out: Path = RESULTS) -> tuple[Entry, ...]:
    """Oldest first; a damaged folder is listed with what can still be read."""
    return tuple(_entry(folder) for folder in _folders(out))


def _folders(out: Path) -> list[Path]:
    return sorted((plan.parent for plan in out.glob(f"*/*/{PLAN}")), key=lambda folder: (folder.name, str(folder)))


def _entry(folder: Path) -> Entry:
    changed = _changed(folder)
    report, plan = {} if changed else _json(folder / "report.json"), _json(folder / PLAN)
    legs = plan.get("legs")
    recipe = plan.get("recipe")
    return Entry(
        folder=folder,
        host=folder.parent.name,
        run_id=folder.name,
        recipe=str(recipe["name"]) if isinstance(recipe, dict) and "name" in recipe else None,
        verdict=str(report["verdict"]) if report.get("verdict") in list(Verdict) else None,
        binding=bool(report["binding"]) if "binding" in report else None,
        legs=len(list(folder.glob("legs/*/legs.parquet"))),
        planned=len(legs) if isinstance(legs, list) else None,
        complete=(folder / COMPLETE).is_file(),
        failure=failure(folder),
        changed=changed,
    )


def _changed(folder: Path) -> bool:
    """Of report.json alone, which is all that a list shows. One that cannot be read is damaged, and shows nothing."""
    try:
        sealed = dict(digests.read(folder / digests.REPORT)).get("report.json")
        return sealed is not None and digests.of(folder, [folder / "report.json"])["report.json"] != sealed
    except OSError:
        return False


def failure(folder: Path) -> str | None:
    """Why a run ended before its first leg; None for one that did not."""
    why = _json(folder / FAILED).get("why")
    return None if why is None else str(why)


def from_here(path: Path) -> str:
    """Relative where it lies below the working directory, else absolute."""
    absolute = path.resolve()
    return str(absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute)


def _json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
