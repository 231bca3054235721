"""3 The results folder takes files, and keeps what is synced to it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from gate.errors import StorageError
from gate.observe.rows import Finding
from gate.plan import Plan


def check(_plan: Plan, out: Path) -> tuple[Finding, ...]:
    """Raises StorageError when out cannot be made, written or synced."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out) as probe:
            probe.write(b"gate")
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise StorageError(
            f"cannot write results in {out}: {error.strerror}", expected="a writable folder", hint="use --out"
        ) from error
    return ()
