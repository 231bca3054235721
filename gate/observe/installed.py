"""4 Versions of installed distributions."""

from __future__ import annotations

import importlib.metadata

from gate.errors import PreconditionError


def version(distribution: str) -> str:
    """PreconditionError where this Python does not know it, as when gate runs from a source folder put on its path."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError as error:
        raise PreconditionError(
            f"{distribution} is on the path and not installed",
            expected="an installed distribution: records say which version measured",
            hint="pip install --editable . in its folder; --no-deps --no-build-isolation without a network",
        ) from error
