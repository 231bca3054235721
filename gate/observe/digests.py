"""4 Digests of a run's files, as sha256sum writes them: noted before a file is there, compared when it is read.

A killed run has no terminal marker to seal it, so that each raw file is announced in records.sha256 first. The file on
disk then has the digest announced last, or, when the gate was killed between the two, the one before. To keep it so
through a second kill, what is there is announced again before its successor, where the last announcement never came
true.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

RECORDS, REPORT = "records.sha256", "report.sha256"
LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")
LEG_ROW = "/legs.parquet"
"""Written last of a leg: with it the leg counts."""
FIRST_OF_A_RESUME = ("run.json", "band.json", "baseline.json")
"""What `gate resume` may write before anything else."""


@dataclass(frozen=True, slots=True)
class Problem:
    name: str
    state: str
    """"is missing", "was added" or "was changed"."""


def of(folder: Path, paths: Iterable[Path]) -> dict[str, str]:
    """Path below the folder -> sha256 of what is there. Raises OSError."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def lines(found: Mapping[str, str]) -> str:
    return "".join(f"{digest}  {name}\n" for name, digest in found.items())


def read(path: Path) -> list[tuple[str, str]]:
    """(name, digest) in the order written; a line that was cut off or edited says nothing."""
    if not path.is_file():
        return []
    matches = map(LINE.fullmatch, path.read_text(encoding="utf-8", errors="replace").splitlines())
    return [(match[2], match[1]) for match in matches if match]


def note(folder: Path, name: str, data: bytes) -> None:
    """Announce a file. Raises OSError."""
    descriptor = os.open(folder / RECORDS, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        # A kill may have cut the line before; what is added must stand on its own.
        start = "" if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n" else "\n"
        os.write(descriptor, (start + _still_there(folder, name) + _line(name, data)).encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _still_there(folder: Path, name: str) -> str:
    """The line of the file as it is, where one announced after it was never written. A changed file gets none."""
    announced, path = [digest for one, digest in read(folder / RECORDS) if one == name][-2:], folder / name
    if len(announced) < 2 or not path.is_file():
        return ""
    data = path.read_bytes()
    return _line(name, data) if hashlib.sha256(data).hexdigest() == announced[0] != announced[1] else ""


def _line(name: str, data: bytes) -> str:
    return lines({name: hashlib.sha256(data).hexdigest()})


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder last through a power cut. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def differing(sealed: Mapping[str, str], found: Mapping[str, str]) -> Problem | None:
    """The first file of a finished run that is not as sealed."""
    for name in sorted({*sealed, *found}):
        if sealed.get(name) != found.get(name):
            state = "is missing" if name not in found else "was added" if name not in sealed else "was changed"
            return Problem(name, state)
    return None


def broken(
    folder: Path, found: Mapping[str, str], *, resumed: bool, before: list[tuple[str, str]] | None = None
) -> Problem | None:
    """The first file that was never announced like this; runs of older versions announce none.

    resumed: it may have been killed and gone on with, so that a file was announced and never written.
    before: what was announced before `found` was looked at, where a gate may still be writing: of what came later
    nothing can be missing.
    """
    if not (folder / RECORDS).is_file():
        return None
    announced: dict[str, list[str]] = {}
    order = read(folder / RECORDS)
    for name, digest in order:
        announced.setdefault(name, []).append(digest)
    for name, digest in found.items():
        if digest not in announced.get(name, ())[-2:]:
            return Problem(name, "was changed" if name in announced else "was added")
    written = _written([name for name, _ in (order if before is None else before)], resumed)
    return next((Problem(name, "is missing") for name in announced if name in written and name not in found), None)


def _written(names: list[str], resumed: bool) -> set[str]:
    """Names that must have files, from the announcements: one is announced when the one before it is there.

    Only the last one of a process may have been cut off. Where that was, nothing says; what a resume begins with does.
    """
    if not resumed:
        return set(names[:-1])
    rows = [name for name in dict.fromkeys(names) if name.endswith(LEG_ROW)]
    followed = {name for name, after in pairwise(names) if after != name and after not in FIRST_OF_A_RESUME}
    return {*rows[:-1], *followed}
