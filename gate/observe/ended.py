"""4 failed.json: why a run ended early, in the words that the command itself ended with; gone when it is resumed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gate.errors import GateError, StorageError

if TYPE_CHECKING:
    from gate.observe.store import Store

FAILED = "failed.json"
INTERRUPTED = "the run was interrupted"


@contextlib.contextmanager
def noted(place: Store) -> Iterator[None]:
    """Around the measurement: what cuts it short is written down and goes its way."""
    path = place.folder / FAILED
    if path.is_file():
        path.unlink()
    try:
        yield
    except (KeyboardInterrupt, GateError) as error:
        with contextlib.suppress(StorageError):  # of a full disk, which is the very error
            place.write_text(FAILED, json.dumps({"why": str(error) or INTERRUPTED}) + "\n")
        raise


def why(folder: Path) -> str | None:
    """None: it did not end early, or was killed before it could say why, or the file is damaged."""
    try:
        found = json.loads((folder / FAILED).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    said = found.get("why") if isinstance(found, dict) else None
    if not isinstance(said, str):
        return None
    return said.encode(errors="replace").decode() or None  # of a path that is no UTF-8 no report could be written
