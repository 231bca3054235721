"""The exception tree of the engine's command line, drawn; each class carries its exit code.

EngineError                      an error the user can act on: one line, no traceback
├── UsageError              64   the command line asks for something that does not exist
└── PreconditionError       69   a checkpoint, port, device or compiler must be there and is not
"""

from __future__ import annotations

USAGE, UNAVAILABLE, INTERRUPTED = 64, 69, 130


class EngineError(Exception):
    """Message in one line: what was found; what was expected; what to do."""

    exit_code = UNAVAILABLE


class UsageError(EngineError):
    exit_code = USAGE


class PreconditionError(EngineError):
    exit_code = UNAVAILABLE
