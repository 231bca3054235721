"""4 A JSON file of a run's folder -> a record; one line for whatever is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gate.errors import StorageError

SCHEMA_VERSION = 1
"""Of plan.json, run.json and complete.json. A field with a default needs no other; one with another meaning does."""
M = TypeVar("M", bound=BaseModel)


def read_model(model: type[M], path: Path) -> M:
    """Raises StorageError: missing, damaged, or of another version."""
    try:
        data = path.read_bytes()
        found = read_json(path).get("schema_version", SCHEMA_VERSION)
        if found != SCHEMA_VERSION:
            raise StorageError(
                f"{path} has schema version {found!r}",
                expected=f"{SCHEMA_VERSION}, which this gate reads",
                hint="read it with the version that wrote it",
            )
        return model.model_validate_json(data)
    except (ValidationError, OSError) as error:
        raise unreadable(path, error) from error


def read_json(path: Path) -> dict[str, Any]:
    """Empty where it is no object. Raises StorageError where it is no JSON."""
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError) as error:
        raise unreadable(path, error) from error
    return value if isinstance(value, dict) else {}


def unreadable(path: Path, error: Exception) -> StorageError:
    if isinstance(error, ValidationError):
        wrong = error.errors()[0]
        where = ".".join(str(part) for part in wrong["loc"])
        reason = f"{where}: {wrong['msg']}" if where else wrong["msg"]
    else:
        reason = str(error)
    return StorageError(f"{path} cannot be read: {reason}", hint="it is damaged, or was written by another version")
