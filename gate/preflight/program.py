"""3 The program of each arm that we start is there, before the other arm has taken its minutes to start."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gate.errors import PreconditionError
from gate.observe.rows import Finding
from gate.plan import Plan


def check(plan: Plan, _out: Path) -> tuple[Finding, ...]:
    """Looked for as the start will look for it: on the PATH of the arm's own environment."""
    for arm in (plan.candidate, plan.oracle):
        if arm.argv and shutil.which(arm.argv[0], path=arm.env.get("PATH", os.defpath)) is None:
            raise PreconditionError(
                f"no program {arm.argv[0]!r} for the {arm.arm}",
                expected="one on PATH, or a path to one that may be executed",
                hint="install it, or name another command",
            )
    return ()
