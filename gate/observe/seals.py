"""4 Whether a folder's records and report are those that were written, and whether the seals that say so are all there.

records.sha256      announces each raw file before it is there (digests.py)
complete.json       last of a run: seals its raw files once more, and itself
report.sha256       seals what `gate show` prints

A seal that was written and is gone is as bad as one that does not fit: what lies there may be anything. Versions before
these files wrote none, and what they left is read as it is: a finished run whose complete.json has no seal of its own,
beside neither of the other two; start-ups, a sweep or a profile whose plan does not say `sealed`. No such run binds.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

from gate.errors import StorageError
from gate.observe import digests
from gate.observe.documents import read_json, read_model, unreadable
from gate.observe.kinds import DEEPER, DERIVED, PLANS, kind_of, raw
from gate.observe.rows import Verdict
from gate.plan import document_hash

COMPLETE = "complete.json"


def _iso(text: str) -> str:
    datetime.fromisoformat(text)
    return text


Moment = Annotated[str, AfterValidator(_iso)]
"""ISO 8601, as text: what is read is written again to the byte."""


class CompleteFile(BaseModel):
    """complete.json: the terminal marker."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    finished_at: Moment
    verdict: Verdict
    exit_code: int
    sha256: dict[str, str]
    """Of everything that a report is derived from, by path."""
    seal: str | None = None
    """Hash of the rest of this document; None in the files of versions that wrote none."""


def is_complete(folder: Path) -> bool:
    return (folder / COMPLETE).is_file()


def check_records(folder: Path) -> CompleteFile | None:
    """The terminal marker of a finished run; None of anything else.

    Raises:
        StorageError: the raw records are not those that were measured, or the seal that would say so is gone.
    """
    finished = _complete(folder) if is_complete(folder) else None
    _raise(lost_records(folder))
    if kind_of(folder) != "run" and not is_sealed(folder):
        return finished
    try:
        before = digests.read(folder / digests.RECORDS)  # first: a gate may be writing beside this
        found = digests.of(folder, raw(folder))
        problem = None if finished is None else digests.differing(finished.sha256, found)
        broken = digests.broken(folder, found, resumed=kind_of(folder) == "run", before=before)
    except OSError as error:
        raise unreadable(folder, error) from error
    if problem is None and finished is not None and broken is not None:
        # The marker has it so, which was written later: the announcement was edited, or the marker made anew.
        raise StorageError(
            f"{folder / digests.RECORDS} does not announce {broken.name} as it is",
            expected="the digests that were noted while it was measured",
            hint="restore it, or measure again",
        )
    if (problem := problem or broken) is not None:
        when = "it was measured" if finished is None else "the run was finished"
        raise StorageError(
            f"{folder / problem.name} {problem.state} after {when}",
            expected="the records as they were measured",
            hint="restore them, or measure again",
        )
    return finished


def check_report(folder: Path) -> None:
    """Raises StorageError when the report is not the one that was written, or has lost its seal."""
    for name, digest in digests.read(folder / digests.REPORT):
        path = folder / name
        if path.parent == folder and path.is_file() and digests.of(folder, [path])[name] != digest:
            raise StorageError(
                f"{path} was changed after it was written",
                expected="the report as it was derived",
                hint=f"gate report {folder.name} derives it again",
            )
    _raise(lost_report(folder))


def check_shown(folder: Path) -> None:
    """Before a report is shown as it was written: what it was derived from is not read, but must have its seal."""
    _raise(lost_records(folder))
    check_report(folder)


def lost_marker(folder: Path) -> StorageError:
    """What to raise where a report is of a finished run and the folder has no marker."""
    return StorageError(
        f"{folder / COMPLETE} is missing, and the report is of a finished run",
        expected="the marker that is written last",
        hint=f"restore it, or gate resume {folder.name} ends the run once more",
    )


def lost_records(folder: Path) -> StorageError | None:
    """What to raise where records.sha256 was written and is gone."""
    if (folder / digests.RECORDS).is_file() or not is_sealed(folder):
        return None
    return StorageError(
        f"{folder / digests.RECORDS} is missing",
        expected="the digests that were noted before each record was written",
        hint="restore it, or measure again",
    )


def lost_report(folder: Path) -> StorageError | None:
    """What to raise where a part of the report is there, and its line in report.sha256 is not."""
    kind, seal = kind_of(folder), folder / digests.REPORT
    if kind not in DEEPER and not seal.is_file() and not is_sealed(folder):
        return None
    named = {name for name, _ in digests.read(seal)}
    bare = next((name for name in DERIVED[kind] if name not in named and (folder / name).is_file()), None)
    if bare is None:
        return None
    return StorageError(
        f"{folder / bare} has no seal: {digests.REPORT} {'does not name it' if seal.is_file() else 'is missing'}",
        expected="the digest that was noted when it was written",
        hint=f"gate report {folder.name} derives it again",
    )


def is_sealed(folder: Path) -> bool:
    """Whether the version that wrote this folder announced its raw files. Where it did not, a report gets no seal
    either: beside records without theirs it would say that they had lost it.
    """
    kind, here = kind_of(folder), folder / digests.RECORDS
    plan = PLANS[kind]
    try:
        if kind != "run":
            return read_json(folder / plan).get("sealed") is True or plan in dict(digests.read(here))
        if not is_complete(folder) or here.is_file() or (folder / digests.REPORT).is_file():
            return True
        return read_json(folder / COMPLETE).get("seal") is not None
    except StorageError:
        return True


def _complete(folder: Path) -> CompleteFile:
    finished, document = read_model(CompleteFile, folder / COMPLETE), read_json(folder / COMPLETE)
    sealed = document_hash({k: v for k, v in document.items() if k != "seal"})
    beside = any((folder / name).is_file() for name in (digests.RECORDS, digests.REPORT))
    if finished.seal != sealed and (finished.seal is not None or beside):
        raise StorageError(
            f"{folder / COMPLETE} was changed after the run was finished",
            expected="the marker as it was written",
            hint="restore it, or measure again",
        )
    return finished


def _raise(error: StorageError | None) -> None:
    if error is not None:
        raise error
