"""4 A profile's folder: raw windows as parquet; `gate report` derives the rest from them again.

records.sha256      digest of each raw file, noted before the file is there
profile.json        what was going to happen: recipe, both command lines, backend, versions
windows.parquet     every window's kernels, launches and times
arms.json           what each arm said of itself, and its untraced times
census.json         the modules of a step and their bytes
logs/               the servers' logs
failed.json         why it ended early, where it did
traces/             the profiler's own files, only with --keep-traces: 100 MB and more a window
attribution.json profile.md stack.svg roofline.svg      derived
report.sha256       seals what `gate show` prints
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from gate.errors import StorageError, UsageError
from gate.observe import ended, parquet, seals
from gate.observe.kinds import PLANS, PROFILED, REPORTS
from gate.observe.rows import Arm, Row, Source
from gate.observe.store import Store
from gate.profile.census import Module
from gate.profile.rows import Backend, ProfileReport, Role, Traced, Wall, Window
from gate.runs import require_records

PROFILE, ARMS, CENSUS, REPORT = PLANS["profile"], PROFILED, "census.json", REPORTS["profile"]


class ArmRecord(Row):
    arm: Arm
    role: Role
    name: str
    """engine, vllm, or the program of a command line."""
    argv: tuple[str, ...]
    version: str | None
    kv_cache_dtype: str | None
    resident_bytes: int | None = None
    """Weights it holds, where it says so; the census is what it shipped as."""
    wall: Wall


class ProfileFile(Row):
    """profile.json."""

    schema_version: Literal[1] = 1
    run_id: str
    recipe: str
    host: str
    started_at: str
    backend: Backend
    nsys: str | None
    """Its version."""
    concurrency: int
    prompt_tokens: int
    rounds: int
    roof_bytes_per_s: float | None = None
    """As given on the command line."""
    planned: tuple[Traced, ...] = ()
    """What was to be traced, in order; empty in the files of versions that did not say."""
    sealed: bool = False
    """Its raw files are announced in records.sha256; False in the files of versions that announced none."""
    machine: dict[str, str] = Field(default_factory=dict)
    gate: Source | None = None


class ProfileData(Row):
    """All raw records of one profile."""

    file: ProfileFile
    arms: tuple[ArmRecord, ...]
    windows: tuple[Window, ...]
    census: tuple[Module, ...]
    ended: str | None = None
    """Why the profile ended early, as it said itself."""


ARM_LIST, MODULE_LIST = TypeAdapter(tuple[ArmRecord, ...]), TypeAdapter(tuple[Module, ...])


class ProfileStore(Store):
    """Writes one profile's folder, each file whole or absent."""

    def begin(self, about: ProfileFile) -> None:
        """Raises StorageError where the folder holds a profile already or cannot be made."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.logs.mkdir()
        except OSError as error:
            raise StorageError.unwritable(self.folder, error) from error
        self.write_text(PROFILE, about.model_dump_json(indent=2) + "\n")

    def write_raw(self, arms: tuple[ArmRecord, ...], windows: tuple[Window, ...], census: tuple[Module, ...]) -> None:
        """All that there is so far, over what was there; the windows, without which nothing is read, last."""
        self.write_text(ARMS, ARM_LIST.dump_json(arms, indent=2).decode() + "\n")
        self.write_text(CENSUS, MODULE_LIST.dump_json(census, indent=2).decode() + "\n")
        self.write_rows("windows", Window, windows)

    def write_report(self, report: ProfileReport) -> None:
        self.write_text(REPORT, report.model_dump_json(indent=2) + "\n")


def is_profile(folder: Path) -> bool:
    return (folder / PROFILE).is_file()


def read(folder: Path) -> ProfileData:
    """Raises StorageError: not a profile, unfinished, damaged, or not as it was measured; one line."""
    if not is_profile(folder):
        raise StorageError(f"{folder} is no profile", expected=f"a folder with {PROFILE}")
    seals.check_records(folder)
    require_records(folder)
    return ProfileData(
        file=_read(TypeAdapter(ProfileFile), folder / PROFILE),
        arms=_read(ARM_LIST, folder / ARMS),
        windows=parquet.read(Window, folder / "windows.parquet"),
        census=_read(MODULE_LIST, folder / CENSUS),
        ended=ended.why(folder),
    )


def find(name: str | None, out: Path) -> Path | None:
    """Folder of a profile: a path, an id, the beginning of one, or None for the newest; None where none matches.

    Raises UsageError where several begin like that.
    """
    if name is not None and is_profile(Path(name)):
        return Path(name)
    folders = sorted(path.parent for path in out.glob(f"*/*/{PROFILE}"))
    if name is None:
        return folders[-1] if folders else None
    matches = [f for f in folders if f.name == name] or [f for f in folders if f.name.startswith(name)]
    if len(matches) > 1:
        raise UsageError(f"{len(matches)} profiles begin with {name!r}", expected="one", hint="give more of its name")
    return matches[0] if matches else None


def require(name: str | None, out: Path) -> Path:
    """The same. Raises UsageError where there is none."""
    folder = find(name, out)
    if folder is None:
        names = [path.parent.name for path in out.glob(f"*/*/{PROFILE}")]
        near = difflib.get_close_matches(name or "", names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "gate profile --model … makes one"
        which = "no profile" if name is None else f"no profile {name!r}"
        raise UsageError(f"{which} under {out.resolve()}", hint=hint)
    return folder


def _read(kind: TypeAdapter[Any], path: Path) -> Any:
    try:
        return kind.validate_json(path.read_bytes())
    except (ValidationError, OSError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.strerror
        raise StorageError(f"{path} cannot be read: {reason}", hint="it is damaged, or of another version") from error
