"""4 One run's folder: written leg by leg, each file whole or absent, the terminal marker last; and read again.

run.json plan.json                where, when, on what; what was going to happen, which makes the folder a run
records.sha256                    digest of each raw file, noted before the file is there
legs/<leg_id>/*.parquet           raw records of one leg, there as soon as the leg ended
tokens/*.parquet                  what the oracle said once more of both arms' ids, part by part (gate/margins.py)
logs/<arm>.log                    what the servers said
starts.parquet                    each start of a server
band.json                         the host's A/A history as it was when the run began
baseline.json                     the host's last accepted grid of the recipe when the run began
requests, legs, telemetry, margins .parquet      merged when the run ends
identities.json                   what the servers said they are
cells.parquet report.*            derived again by `gate report`; report.sha256 seals what `gate show` prints
failed.json                       why a run ended early (gate/observe/ended.py)
complete.json                     last: an interrupted run can never look complete
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from gate.calibration.record import BandRecord
from gate.compare.record import Baseline
from gate.errors import StorageError
from gate.observe import digests, ended, kinds, parquet, seals
from gate.observe.documents import read_json, read_model, unreadable
from gate.observe.rows import (
    Finding,
    Identity,
    LegRow,
    MarginRow,
    Pins,
    RequestRow,
    Row,
    StartRow,
    TelemetryRow,
)
from gate.observe.rundata import RunData
from gate.observe.tokenrows import ForcedRow, SequenceRow
from gate.plan import Plan, document_hash
from gate.report.model import ClientCost

PLAN, RUN, IDENTITIES = kinds.PLANS["run"], "run.json", "identities.json"
BAND = "band.json"
BASELINE = "baseline.json"
TABLES: dict[str, type[Row]] = {"legs": LegRow, "requests": RequestRow, "telemetry": TelemetryRow}
R = TypeVar("R", bound=Row)
IDENTITY_LIST = TypeAdapter(tuple[Identity, ...])


class RunFile(BaseModel):
    """run.json: everything about a run that is neither planned nor a row."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    run_id: str
    host: str
    started_at: seals.Moment
    machine: dict[str, str] = {}
    client: ClientCost | None = None
    preflight: tuple[Finding, ...] = ()
    pins: tuple[Pins, ...] = ()


class Store:
    """Writes one run's folder.

    Raises:
        StorageError: from every method, when the file system refuses; one line.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def create(self, plan: Row, run: RunFile) -> None:
        """Make the folder. A run is never written over; a folder without a plan was cut off before it became one."""
        begun = (self.folder / PLAN).exists()
        try:
            self.folder.mkdir(parents=True, exist_ok=not begun)
            self.logs.mkdir(exist_ok=True)
            (self.folder / "legs").mkdir(exist_ok=True)
        except OSError as error:
            raise StorageError.unwritable(self.folder, error) from error
        self.write_run(run)
        self.write_text(PLAN, plan.model_dump_json(indent=2) + "\n")

    def write_run(self, run: RunFile) -> None:
        self.write_text(RUN, run.model_dump_json(indent=2) + "\n")

    def write_band(self, band: BandRecord) -> None:
        self.write_text(BAND, band.model_dump_json(indent=1) + "\n")

    def write_baseline(self, baseline: Baseline) -> None:
        self.write_text(BASELINE, baseline.model_dump_json(indent=1) + "\n")

    def append_leg(self, leg: LegRow, requests: Sequence[RequestRow], telemetry: Sequence[TelemetryRow]) -> None:
        """The leg's own row goes last: a leg without it was cut off and does not count."""
        folder = self.folder / "legs" / leg.leg_id
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise StorageError.unwritable(folder, error) from error
        for name, rows in (("requests", requests), ("telemetry", telemetry), ("legs", (leg,))):
            self._write(f"legs/{leg.leg_id}/{name}.parquet", parquet.to_bytes(TABLES[name], list(rows)))

    def append_identities(self, seen: Sequence[Identity]) -> None:
        """Keeps one of each digest and arm, in the order first seen."""
        known = {(one.arm, one.digest): one for one in (*identities(self.folder), *seen)}
        self.write_text(IDENTITIES, IDENTITY_LIST.dump_json(tuple(known.values()), indent=2).decode() + "\n")

    def append_start(self, start: StartRow) -> None:
        self.write_rows("starts", StartRow, (*_starts(self.folder), start))

    def has_part(self, name: str) -> bool:
        return (self.folder / "tokens" / f"{name}.parquet").is_file()

    def write_part(self, name: str, model: type[Row], rows: Sequence[Row]) -> None:
        """One part of the token judgement; there as soon as it is complete."""
        try:
            (self.folder / "tokens").mkdir(exist_ok=True)
        except OSError as error:
            raise StorageError.unwritable(self.folder / "tokens", error) from error
        self.write_rows(f"tokens/{name}", model, rows)

    def write_rows(self, name: str, model: type[Row], rows: Sequence[Row]) -> None:
        self._write(f"{name}.parquet", parquet.to_bytes(model, list(rows)))

    def merge(self, run: RunData) -> None:
        """One file a table, beside the legs' own, which stay the ones that are read."""
        self.write_rows("legs", LegRow, run.legs)
        self.write_rows("requests", RequestRow, run.requests)
        self.write_rows("telemetry", TelemetryRow, run.telemetry)

    def write_text(self, name: str, text: str) -> None:
        self._write(name, text.encode())

    def complete(self, finished_at: str, verdict: str, exit_code: int) -> None:
        """The terminal marker, written when everything else is on disk; it seals the raw records with their digests."""
        marker = {
            "schema_version": 1,
            "finished_at": finished_at,
            "verdict": verdict,
            "exit_code": exit_code,
            "sha256": digests.of(self.folder, kinds.raw(self.folder)),
        }
        self.write_text(seals.COMPLETE, json.dumps(marker | {"seal": document_hash(marker)}) + "\n")

    def seal_report(self) -> None:
        """What `gate show` compares the report with: a figure edited there is found, as one in the records is."""
        found = digests.of(self.folder, kinds.derived(self.folder))
        self.write_text(digests.REPORT, digests.lines(found))

    def _write(self, name: str, data: bytes) -> None:
        """Whole or not at all: a file beside it, flushed to the disk, then renamed over it, and the rename flushed too.

        A raw file's digest is noted first: whatever is found later was announced, or was changed.
        """
        path = self.folder / name
        partial = path.with_name(f".{path.name}.partial")
        try:
            if kinds.is_raw(self.folder, name):
                digests.note(self.folder, name, data)
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            digests.sync_folder(path.parent)
        except BaseException as error:  # an interrupt leaves no more behind than a full disk
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise StorageError.unwritable(path, error) from error
            raise


def read_run(folder: Path) -> RunData:
    """Everything a run left behind, from its raw files; legs without their own row are left out.

    Raises:
        StorageError: not a run's folder, a corrupt file, or one of another version; one line.
    """
    if not (folder / PLAN).is_file():
        raise StorageError(f"{folder} is not a run", expected=f"a folder with {PLAN}", hint="gate list shows the runs")
    plan = read_model(Plan, folder / PLAN)
    if document_hash(read_json(folder / PLAN)) != plan.plan_id:
        raise StorageError(
            f"{folder / PLAN} does not hash to its own plan_id", hint="it was edited, or written by another version"
        )
    finished = seals.check_records(folder)
    run = read_model(RunFile, folder / RUN)
    measured = [leg.leg_id for leg in plan.all_legs if (folder / "legs" / leg.leg_id / "legs.parquet").is_file()]

    def rows(name: str) -> tuple[Any, ...]:
        files = (folder / "legs" / leg_id / f"{name}.parquet" for leg_id in measured)
        return tuple(row for file in files for row in parquet.read(TABLES[name], file))

    margins = folder / "margins.parquet"
    return RunData(
        plan=plan,
        run_id=run.run_id,
        host=run.host,
        started_at=run.started_at,
        finished_at=finished.finished_at if finished is not None else None,
        unsealed=finished is not None and finished.seal is None,
        legs=tuple(row for leg_id in measured for row in _leg(folder, leg_id)),
        requests=rows("requests"),
        telemetry=rows("telemetry"),
        identities=identities(folder),
        margins=parquet.read(MarginRow, margins) if margins.is_file() else (),
        repeats=parts(folder, "repeats-", SequenceRow),
        forced=parts(folder, "forced-", ForcedRow),
        starts=_starts(folder),
        client=run.client,
        machine=run.machine,
        preflight=run.preflight,
        band=read_model(BandRecord, folder / BAND) if (folder / BAND).is_file() else None,
        baseline=read_model(Baseline, folder / BASELINE) if (folder / BASELINE).is_file() else None,
        pins=run.pins,
        ended=ended.why(folder) if finished is None else None,
    )


def parts(folder: Path, beginning: str, model: type[R]) -> tuple[R, ...]:
    files = sorted((folder / "tokens").glob(f"{beginning}*.parquet"))
    return tuple(row for file in files for row in parquet.read(model, file))


def _starts(folder: Path) -> tuple[StartRow, ...]:
    path = folder / "starts.parquet"
    return parquet.read(StartRow, path) if path.is_file() else ()


def _leg(folder: Path, leg_id: str) -> tuple[LegRow, ...]:
    """The one row of a leg that counts."""
    path = folder / "legs" / leg_id / "legs.parquet"
    rows = parquet.read(LegRow, path)
    if [row.leg_id for row in rows] != [leg_id]:
        told = ", ".join(row.leg_id for row in rows[:3]) or "no leg"
        raise StorageError(
            f"{path} holds {told}", expected=f"one row, of {leg_id}", hint="restore it, or measure again"
        )
    return rows


def read_run_file(folder: Path) -> RunFile:
    return read_model(RunFile, folder / RUN)


def identities(folder: Path) -> tuple[Identity, ...]:
    path = folder / IDENTITIES
    if not path.is_file():
        return ()
    try:
        return IDENTITY_LIST.validate_json(path.read_bytes())
    except (ValidationError, OSError) as error:
        raise unreadable(path, error) from error
