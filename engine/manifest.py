"""What exactly runs: versions, a digest of this package's sources, and what the runner says of itself."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from engine.errors import PreconditionError

PACKAGES = ("torch", "safetensors", "tokenizers", "starlette", "uvicorn")
"""Those whose version can change an answer or a time."""

SOURCES = ("*.py", "*.cu", "*.cuh")


def version() -> str:
    """This project's version, as installed. Raises PreconditionError where it is on the path and not installed."""
    try:
        return importlib.metadata.version("gate-and-engine")
    except importlib.metadata.PackageNotFoundError as error:
        raise PreconditionError(
            "gate-and-engine is on the path and not installed: pip install --editable . in its folder"
        ) from error


@lru_cache(maxsize=1)
def source_sha256() -> str:
    """Digest of every source file of the package, names included: equal digests mean equal code, committed or not."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(p for pattern in SOURCES for p in root.rglob(pattern)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def manifest(runner: Mapping[str, object]) -> dict[str, object]:
    """`runner` is Runner.info(): device, kernels, weights. A package that is not installed is None, never left out."""
    return {
        "version": version(),
        "source_sha256": source_sha256(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _installed(name) for name in PACKAGES},
        **runner,
    }


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
