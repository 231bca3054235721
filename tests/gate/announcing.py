"""Records that are announced as they lie there: a run that was damaged before it was sealed."""

from __future__ import annotations

from pathlib import Path

from gate.observe import digests, kinds


def announce_as_it_is(folder: Path) -> None:
    (folder / digests.RECORDS).unlink(missing_ok=True)
    for path in kinds.raw(folder):
        if path.is_file():
            digests.note(folder, str(path.relative_to(folder)), path.read_bytes())
