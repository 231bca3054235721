"""Where an installed oracle lives and how to call its Python; a stamp marks the finished installation."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gate.errors import OracleError
from oracle.pins import Platform, home, load

STAMP = "stamp.json"
"""Written last, so its absence in an existing folder means a half-done installation."""

Source = Literal["index", "wheels", "archive"]


@dataclass(frozen=True, slots=True)
class Environment:
    """A finished installation, as its stamp says."""

    platform: Platform
    digest: str
    """Digest of the pin it was made for."""
    source: Source
    python: str
    """Interpreter that runs the oracle. Not resolved: a venv's interpreter must be called by its own name."""
    pythonpath: str | None
    """Folder put in front of the interpreter's own packages; an unpacked archive has one, a venv none."""
    installed_at: str
    """ISO 8601 UTC."""

    def write(self, folder: Path) -> None:
        """Replace the stamp in one step."""
        temporary = folder / (STAMP + ".new")
        temporary.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        temporary.replace(folder / STAMP)


def read(platform: Platform, root: Path | None = None) -> Environment | None:
    """The stamp of a platform's environment; None when there is none, or it does not parse."""
    try:
        fields = json.loads((home(platform, root) / STAMP).read_text())
        return Environment(**fields)
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None


def require(platform: Platform, root: Path | None = None) -> Environment:
    """The environment, or OracleError: not installed, half installed, made for another pin, or its Python is gone."""
    folder, hint = home(platform, root), f"run: gate oracle install {platform}"
    environment = read(platform, root)
    if environment is None:
        state = "is only half installed" if folder.exists() else "is not installed"
        raise OracleError(f"the {platform} oracle {state} ({folder})", hint=hint)
    if environment.digest != load(platform).digest:
        raise OracleError(f"the {platform} oracle in {folder} was installed for another pin", hint=hint)
    if not os.access(environment.python, os.X_OK):
        raise OracleError(f"the {platform} oracle's Python is gone: {environment.python}", hint=hint)
    return environment


def expected(platform: Platform, root: Path | None = None) -> Environment:
    """What `gate oracle install` would leave: a command line can be shown with it, and not started."""
    python = home(platform, root) / "bin/python"
    return Environment(platform, load(platform).digest, "index", str(python), None, "")
