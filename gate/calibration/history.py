"""6 The A/A gates under a host's results, and its bands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gate import messages
from gate.calibration import fit
from gate.calibration import key as keys
from gate.calibration.record import BandKey, BandRecord
from gate.checks.evidence import Evidence
from gate.errors import StorageError
from gate.messages import Say, quiet
from gate.observe import seals, store
from gate.observe.documents import read_json, read_model
from gate.observe.rundata import RunData
from gate.plan import Plan

BANDS = "bands"


@dataclass(frozen=True, slots=True)
class Gate:
    folder: Path
    run: RunData
    complete: bool


def key_of_run(run: RunData) -> BandKey:
    """With the oracle's version as it reported it."""
    identity = Evidence.of(run).identity("oracle")
    return keys.key_of(run.plan, run.host, run.machine, None if identity is None else identity.version)


def gates(folder: Path, key: BandKey, say: Say = quiet) -> tuple[Gate, ...]:
    """A/A runs of a host's folder with this key, oldest first, complete or not.

    A run that cannot be read, was changed or has lost a seal is left out, which is said. So is one that does not tell a
    setting which the key knows, or tells one that it does not. A copy of a folder is no second gate: it would lend its
    noise twice, and more gates than there were.
    """
    found: dict[str, Gate] = {}
    for gate in _gates(folder, key, say):
        known = found.get(gate.run.run_id)
        if known is None or not known.complete:
            found[gate.run.run_id] = gate
    return tuple(found.values())


def _gates(folder: Path, key: BandKey, say: Say) -> Iterator[Gate]:
    for path in sorted(folder.glob(f"*/{store.PLAN}")):
        try:
            # Legs are read of A/A runs alone, which are few.
            if not keys.is_aa(Plan.model_validate_json(path.read_bytes())):
                continue
            run = store.read_run(path.parent)
            if seals.is_complete(path.parent):  # an unfinished one may have been killed between its report and the seal
                seals.check_report(path.parent)
            if run.unsealed:
                continue
            if not keys.differences(found := key_of_run(run), key) and not keys.unknown(found, key):
                yield Gate(path.parent, run, run.finished_at is not None)
        except StorageError as error:
            say(messages.passed_over(path.parent.name, "an A/A gate", error))
        except (ValidationError, OSError):
            continue


def nearest(folder: Path, recipe: str, key: BandKey, say: Say = quiet) -> BandRecord | None:
    """Of the recipe's bands on this host the one that differs least; None where there is none.

    One that differs is worth having: the report says in what. One of another kind of oracle is not: it was recorded for
    its observed rates (`calibrate --arm candidate`). One that cannot be read, or was edited, is none, which is said.
    """
    found = [band for path in sorted((folder / BANDS).glob("*.json")) if (band := _read(path, say)) is not None]
    found = [band for band in found if band.key.oracle_kind == key.oracle_kind]
    ours = [band for band in found if band.recipe == recipe or not keys.differences(band.key, key)]
    return min(
        ours,
        key=lambda band: (len(keys.differences(band.key, key)), len(keys.unknown(band.key, key))),
        default=None,
    )


def path_of(folder: Path, recipe: str, key: BandKey) -> Path:
    return folder / BANDS / f"{recipe}-{keys.digest(key)[:12]}.json"


def _read(path: Path, say: Say) -> BandRecord | None:
    try:
        record = read_model(BandRecord, path)
        if fit.id_of(read_json(path)) != record.band_id:
            raise StorageError(f"{path} was changed after it was written", expected="a band that hashes to its band_id")
    except StorageError as error:
        say(f"{messages.passed_over(path.name, 'a band', error)}; gate calibrate writes it anew")
        return None
    return record


def write(record: BandRecord, path: Path) -> None:
    """Whole or not at all.

    Raises:
        StorageError: the file system refuses.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(record.model_dump(mode="json"), indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise StorageError.unwritable(path, error) from error


def bring(plan: Plan, machine: Mapping[str, str], place: store.Store, say: Say = quiet) -> None:
    """Copy the host's nearest band into the run's folder, where one exists."""
    folder = place.folder.parent
    band = nearest(folder, plan.recipe.name, keys.key_of(plan, folder.name, machine, None), say)
    if band is not None:
        place.write_band(band)
