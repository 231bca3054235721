"""4 The pinned things as they lie on this machine: checkpoint folders and the oracle's packages, before and after."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from gate.errors import GateError
from gate.observe.rows import ARMS, Pins
from gate.plan import Plan
from gate.preflight.digest import digest
from oracle import environment
from oracle.pins import load
from oracle.verify import compare

GONE = "cannot be read"


def look(plan: Plan, when: Literal["start", "end"]) -> Pins:
    """Whatever is wrong is written down, and judged later: at the end of a run there is nothing left to refuse."""
    arms = [plan.arm(arm) for arm in ARMS]
    checkpoints = {arm.arm: _digest(arm.checkpoint) for arm in arms if arm.kind != "url"}
    if not any(arm.kind == "vllm" for arm in arms):
        return Pins(when=when, checkpoints=checkpoints)
    pin = load(plan.recipe.oracle.platform)
    try:
        verified = compare(pin, environment.require(pin.platform))
    except GateError as error:
        return Pins(when=when, checkpoints=checkpoints, oracle_differs=(str(error).splitlines()[0],))
    return Pins(
        when=when,
        checkpoints=checkpoints,
        oracle={name: verified.versions[name] for name in pin.identity if name in verified.versions},
        oracle_differs=tuple(f"{d.what} is {d.found}, pinned {d.pinned}" for d in verified.differences),
    )


def _digest(folder: str) -> str:
    try:
        return digest(Path(folder))
    except (OSError, GateError):
        return GONE
