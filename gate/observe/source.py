"""4 Which version of the gate this is: its git commit, where it runs from a repository."""

from __future__ import annotations

import subprocess

from gate.observe.rows import Source
from gate.recipe import ROOT

TIMEOUT_S = 10.0


def source() -> Source | None:
    """None outside a git repository of its own, or where git is not installed."""
    if not (ROOT / ".git").exists():
        return None
    commit = _git("rev-parse", "--verify", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return None if commit is None or changes is None else Source(commit=commit, dirty=bool(changes))


def _git(*arguments: str) -> str | None:
    """Standard output; None where git is missing, refuses or hangs."""
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
