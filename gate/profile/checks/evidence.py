"""5 What the checks of a profile look at: both arms' windows, untraced walls and step tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gate.observe.rows import ARMS, Arm, Finding
from gate.profile.levers import Drift
from gate.profile.rows import StepTable, Window


@dataclass(frozen=True, slots=True)
class Evidence:
    windows: tuple[Window, ...]
    """Two an arm, two more for the arm that was profiled again as a control."""
    tables: dict[Arm, StepTable]
    """Of the measured windows; an arm whose trace has no kernels has none."""
    drift: Drift

    def pairs(self) -> Iterator[tuple[Arm, str, Window, Window]]:
        """(arm, role, short, long) of every pair of windows that is complete."""
        for arm in ARMS:
            for role in ("measured", "control"):
                made = sorted(
                    (w for w in self.windows if w.arm == arm and w.role == role), key=lambda w: w.output_tokens
                )
                if len(made) == 2:
                    yield arm, role, made[0], made[1]


def finding(code: str, arm: Arm | None, message: str, hint: str, beyond: float | None = None) -> Finding:
    return Finding(code=code, message=message, hint=hint, arm=arm, beyond=beyond)
