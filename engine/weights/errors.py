"""CheckpointError: a checkpoint is not what its configuration, or this engine, expects."""

from __future__ import annotations

from engine.errors import PreconditionError


class CheckpointError(PreconditionError, ValueError):
    """One line: the file or tensor, what was found, what was expected, what to do."""
