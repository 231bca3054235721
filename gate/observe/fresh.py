"""4 The folder of a new run, named by the second in which it starts: by the next one where that name is taken."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from gate.errors import StorageError

WAIT_S = 0.05


def folder(parent: Path, label: str) -> tuple[datetime, Path]:
    """Makes it: when the run starts, and where it writes. Two gates of one moment, on two GPUs, get one each.

    Raises StorageError when it cannot be made.
    """
    while True:
        started = datetime.now(UTC)
        made = parent / f"{started:%Y%m%dT%H%M%SZ}-{label}"
        try:
            parent.mkdir(parents=True, exist_ok=True)
            made.mkdir()
        except OSError as error:
            if isinstance(error, FileExistsError) and parent.is_dir():
                time.sleep(WAIT_S)
                continue
            raise StorageError.unwritable(made, error) from error
        return started, made
