"""The exception tree, drawn; each class carries its exit code (docs/verdict.md).

GateError                        an error the user can act on: one line, no traceback
├── UsageError              64   the command line or the recipe asks for something that does not exist
├── PreconditionError       69   something must be there before the first leg and is not
│   ├── CheckpointError          missing, half-downloaded, corrupt, or another revision
│   ├── OracleError              not installed, or not the pinned version
│   └── ArmError                 a server did not start, or is not what the plan says
├── LockHeldError           75   another gate has the GPU
└── StorageError            69   results cannot be written or read
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

PASS, FAIL, INCONCLUSIVE, VOID = 0, 1, 2, 3
USAGE, UNAVAILABLE, INTERNAL, LOCKED, INTERRUPTED = 64, 69, 70, 75, 130


class GateError(Exception):
    """Message in one line: what was found; what was expected; what to do."""

    exit_code = UNAVAILABLE

    def __init__(self, found: str, *, expected: str = "", hint: str = "") -> None:
        self.found, self.expected, self.hint = found, expected, hint
        parts = [found]
        if expected:
            parts.append(f"expected {expected}")
        if hint:
            parts.append(hint)
        super().__init__("; ".join(parts))


class UsageError(GateError):
    exit_code = USAGE


class PreconditionError(GateError):
    exit_code = UNAVAILABLE


class CheckpointError(PreconditionError): ...


class OracleError(PreconditionError): ...


class ArmError(PreconditionError): ...


class LockHeldError(GateError):
    exit_code = LOCKED


class StorageError(GateError):
    exit_code = UNAVAILABLE

    @classmethod
    def unwritable(cls, path: Path, error: OSError) -> Self:
        found = f"cannot write {path}: {error.strerror or error}"
        return cls(found, hint="free space or choose another folder with --out; what was measured before stays")
