"""The runs and profiles under a results folder: by name, by path, or the newest. Other flows lie one folder deeper."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import pyarrow.parquet as pq

from gate.errors import StorageError, UsageError
from gate.observe import digests, ended, seals
from gate.observe.kinds import DEEPER, KINDS, MEASURED, PLANS, PROFILED, RECORDS, REPORTS, Kind, kind_of
from gate.observe.rows import ARMS, Verdict
from gate.recipe import ROOT
from gate.units import DASH

R = TypeVar("R", dict[str, Any], list[Any])
RESULTS = ROOT / "results"
LEAST_OF_AN_ID = 4
"""Characters of a plan's id that name a run: with fewer one hits some other by chance."""


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
    """Why it ended with nothing measured."""
    changed: bool = False
    """Its report is not the one that was written: then it has no verdict here, and `gate show` refuses it too."""
    unsealed: str = ""
    """What has lost its seal, "records" or "report": the same."""
    kind: Kind = "run"
    holds: str = ""
    """Of a profile: batch, backend and the arms that were traced. Of a token run: what stands in place of legs."""
    missing: str = ""
    """Of a profile of which something was: what was not."""


def find(name: str | None, out: Path = RESULTS, kinds: tuple[Kind, ...] = ("run",)) -> Path:
    """Folder of a run: a path, a name, the beginning of one or of its plan's id, or None for the newest of these kinds.

    Raises:
        UsageError: there is none, several begin like that, or it is of another kind.
    """
    for kind in KINDS if name is not None else ():
        if (Path(name or "") / PLANS[kind]).is_file():
            # `gate show .`: the run's own name and its results folder are in the whole path
            return _of_kind(Path(name or "").resolve(), kinds)
    folders = _folders(out, kinds)
    if name is None and folders:
        return folders[-1]
    matches = _matches(name, folders) or _matches(name, _folders(out, KINDS))
    if len(matches) == 1:
        return _of_kind(matches[0], kinds)
    if matches:
        names = ", ".join(folder.name for folder in matches[:3]) + (", …" if len(matches) > 3 else "")
        raise UsageError(f"{len(matches)} runs are named {name!r}: {names}", expected="one", hint="give more of a name")
    if not folders:
        raise UsageError(f"no runs under {out.resolve()}", hint="gate run makes one; --out names another folder")
    near = difflib.get_close_matches(name or "", [folder.name for folder in folders], n=1, cutoff=0.5)
    raise UsageError(
        f"no run {name!r} under {out.resolve()}", hint=f"did you mean {near[0]}?" if near else "gate list shows them"
    )


def entries(out: Path = RESULTS) -> tuple[Entry, ...]:
    """Oldest first; a damaged folder is listed with what can still be read."""
    return tuple(_entry_of(folder, kind_of(folder)) for folder in _folders(out, KINDS))


def _entry_of(folder: Path, kind: Kind) -> Entry:
    if kind in DEEPER:
        return _aside(folder, kind)
    return _entry(folder) if kind == "run" else _profile(folder)


def _matches(name: str | None, folders: list[Path]) -> list[Path]:
    if name is None:
        return []
    whole = [folder for folder in folders if folder.name == name]
    return whole or [f for f in folders if f.name.startswith(name)] or [f for f in folders if _planned_as(f, name)]


def _planned_as(folder: Path, name: str) -> bool:
    """Whether it is the beginning of the plan's id, which a run says at its start and bears in its name."""
    in_name = folder.name.rpartition("-")[2]
    if len(name) < LEAST_OF_AN_ID or not (in_name.startswith(name) or name.startswith(in_name)):
        return False
    return str(_json(folder / PLANS[kind_of(folder)]).get("plan_id", "")).startswith(name)


def _of_kind(folder: Path, kinds: tuple[Kind, ...]) -> Path:
    if (kind := kind_of(folder)) not in kinds:
        hint = f"gate show {folder.name} prints it"
        raise UsageError(f"{folder.name} is of gate {kind}", expected="a run of gate run or gate tokens", hint=hint)
    return folder


def _folders(out: Path, kinds: tuple[Kind, ...]) -> list[Path]:
    patterns = [f"{kind}/*/{PLANS[kind]}" if kind in DEEPER else f"*/{PLANS[kind]}" for kind in kinds]
    found = {plan.parent for pattern in patterns for plan in out.glob(f"*/{pattern}")}
    return sorted(found, key=lambda folder: (folder.name, str(folder)))


def _entry(folder: Path) -> Entry:
    doubt, complete = _doubt(folder, "run"), seals.is_complete(folder)
    report, plan = {} if doubt else _json(folder / REPORTS["run"]), _json(folder / PLANS["run"])
    if not complete and report.get("finished_at") is not None:  # `gate show` refuses it too
        report = {}
    legs = len(plan["legs"]) if isinstance(plan.get("legs"), list) else None
    recipe = plan.get("recipe")
    if tokens := plan.get("flow") == "tokens":
        recipe = _table(plan.get("base")).get("recipe")
    measured, planned = _loads(folder, plan) if tokens else (len(list(folder.glob("legs/*/legs.parquet"))), legs)
    return Entry(
        folder=folder,
        host=folder.parent.name,
        run_id=folder.name,
        recipe=str(recipe["name"]) if isinstance(recipe, dict) and "name" in recipe else None,
        verdict=str(report["verdict"]) if report.get("verdict") in list(Verdict) else None,
        binding=bool(report["binding"]) if "binding" in report else None,
        legs=measured,
        planned=planned,
        complete=complete,
        failure=failure(folder),
        **doubt,
        holds="loads" if tokens else "",
    )


def _loads(folder: Path, plan: dict[str, Any]) -> tuple[int, int | None]:
    """Of a token run: answered, and planned, once on the candidate and so many times on the oracle."""
    loads, repeats = plan.get("scenarios"), plan.get("repeats")
    answered = len(list(folder.glob("tokens/answers-*.parquet")))
    if isinstance(loads, list) and isinstance(repeats, int):
        return answered, len(loads) * (1 + repeats)
    return answered, None


def _aside(folder: Path, kind: Kind) -> Entry:
    """Of a sweep, which has no verdict, or of start-ups, whose verdict never binds."""
    doubt = _doubt(folder, kind)
    plan, report = _json(folder / PLANS[kind]), {} if doubt else _json(folder / REPORTS[kind])
    inner = plan if kind == "sweep" else _table(plan.get("plan"))
    legs, recipe = inner.get("legs"), _table(inner.get("recipe")).get("name")
    planned, measured = len(legs) if isinstance(legs, list) else None, _rows(folder / RECORDS[kind])
    return Entry(
        folder=folder,
        host=folder.parents[1].name,
        run_id=folder.name,
        recipe=None if recipe is None else str(recipe),
        verdict=str(report["verdict"]) if report.get("verdict") in list(Verdict) else None,
        binding=False if kind == "startup" and report else None,
        legs=measured,
        planned=planned,
        complete=bool(report) and measured == planned and report.get("complete") is not False,
        failure=failure(folder),
        **doubt,
        kind=kind,
    )


def _profile(folder: Path) -> Entry:
    """It has no legs and no verdict."""
    about, doubt = _json(folder / PLANS["profile"]), _doubt(folder, "profile")
    report = {} if doubt else _json(folder / REPORTS["profile"])
    arms = _said(_read(folder / PROFILED, []))
    planned = _said(about.get("planned")) or [(arm, "measured") for arm in ARMS]
    lacking = [one for one in planned if one not in arms] or _said(report.get("missing"))
    traced = _names(arms)
    what = f"c{about.get('concurrency', DASH)} {about.get('backend', DASH)}"
    return Entry(
        folder=folder,
        host=folder.parent.name,
        run_id=folder.name,
        recipe=None if about.get("recipe") is None else str(about["recipe"]),
        verdict=None,
        binding=None,
        legs=0,
        planned=None,
        complete=bool(report) and not lacking and ended.why(folder) is None,
        failure=failure(folder),
        **doubt,
        kind="profile",
        missing=_names(lacking) if arms else "",
        holds=": ".join(filter(None, (what, traced))) + (", refused" if report.get("refused") is True else ""),
    )


def _said(traced: object) -> list[tuple[str, str]]:
    """(arm, role) of each, as a file has it; nothing of what is no list."""
    found = map(_table, traced) if isinstance(traced, list) else ()
    return [(str(one.get("arm")), str(one.get("role"))) for one in found]


def _names(traced: Iterable[tuple[str, str]]) -> str:
    return ", ".join(arm if role == "measured" else role for arm, role in traced)


class _Doubt(TypedDict, total=False):
    """Fields of an Entry: why nothing of its report is shown."""

    changed: bool
    unsealed: str


def _doubt(folder: Path, kind: Kind) -> _Doubt:
    """Empty where its report can be shown. One that cannot be read is damaged, and shows nothing."""
    report = REPORTS[kind]
    try:
        if seals.lost_records(folder) is not None:
            return {"unsealed": "records"}
        sealed = dict(digests.read(folder / digests.REPORT)).get(report)  # of the one file that a list shows
        if sealed is not None and digests.of(folder, [folder / report])[report] != sealed:
            return {"changed": True}
        return {"unsealed": "report"} if seals.lost_report(folder) is not None else {}
    except OSError:
        return {}


def failure(folder: Path) -> str | None:
    """Why it ended with nothing measured; None for one that did not."""
    return None if _measured(folder) else ended.why(folder)


def no_report(folder: Path) -> StorageError:
    """What to raise for a folder without one."""
    kind, why = kind_of(folder), failure(folder)
    anew = f"gate resume {folder.name} goes through the whole plan" if kind == "run" else f"gate {kind} begins anew"
    if why is not None:
        hint = anew if why == ended.INTERRUPTED else f"mend that; then {anew}"
        return StorageError(f"{folder.name} ended with nothing measured: {why}", hint=hint)
    if not _measured(folder):
        return StorageError(f"{folder} has no report, and no records to derive one from", hint=anew)
    return StorageError(f"{folder} has no report", hint=f"gate report {folder.name} derives one")


def require_records(folder: Path) -> None:
    """Raises StorageError of a folder in which nothing was measured: there is no report to derive, and no verdict."""
    if not _measured(folder):
        raise no_report(folder)


def _measured(folder: Path) -> bool:
    return any(any(folder.glob(pattern)) for pattern in MEASURED[kind_of(folder)])


def from_here(path: Path) -> str:
    """Relative where it lies below the working directory, else absolute."""
    absolute = path.resolve()
    return str(absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute)


def _rows(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_rows)
    except Exception:  # noqa: BLE001  (missing, or bytes of no known tool, which can raise any: a list goes on)
        return 0


def _json(path: Path) -> dict[str, Any]:
    return _read(path, {})


def _read(path: Path, default: R) -> R:
    """A file's JSON where it is of the default's type; the default for what is missing, damaged or of another type."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return default
    return found if isinstance(found, type(default)) else default


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
