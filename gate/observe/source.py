"""4 Which version of the gate this is, its git commit; and which sources of our engine lie beside it."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from gate.observe.rows import Source
from gate.recipe import ROOT

TIMEOUT_S = 10.0
ENGINE_SOURCES = ("*.py", "*.cu", "*.cuh")
"""As engine/manifest.py has them; a test compares the two digests."""


def source() -> Source | None:
    """None outside a git repository of its own, or where git is not installed."""
    if not (ROOT / ".git").exists():
        return None
    commit = _git("rev-parse", "--verify", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return None if commit is None or changes is None else Source(commit=commit, dirty=bool(changes))


def engine_sha256(root: Path = ROOT / "engine") -> str | None:
    """Digest of the engine's sources, as the running engine reports its own (manifest.source_sha256).

    Made from files, since the gate never imports the engine. None where there is no engine beside the gate.
    """
    paths = sorted(path for pattern in ENGINE_SOURCES for path in root.rglob(pattern))
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest() if paths else None


def _git(*arguments: str) -> str | None:
    """Standard output; None where git is missing, refuses or hangs."""
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
