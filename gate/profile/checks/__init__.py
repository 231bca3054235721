"""5 Proof before use: one reason not to believe a profile per file; here the list, in report order.

REFUSES says what a finding does: True, and there is no step table to show; False, and the levers that it concerns are
unproven.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from gate.observe.rows import Finding
from gate.profile.checks import (
    graph_level_trace,
    launches_not_whole,
    names_unpaired,
    no_drift_control,
    not_closed,
    request_count_differs,
    steps_differ,
    warmup_included,
)
from gate.profile.checks.evidence import Evidence


class Check(Protocol):
    CODE: str
    REFUSES: bool

    def check(self, evidence: Evidence) -> Iterator[Finding]: ...


CHECKS: tuple[Check, ...] = (
    graph_level_trace,
    request_count_differs,
    warmup_included,
    steps_differ,
    launches_not_whole,
    not_closed,
    no_drift_control,
    names_unpaired,
)
REFUSING = frozenset(check.CODE for check in CHECKS if check.REFUSES)


def findings(evidence: Evidence) -> tuple[Finding, ...]:
    return tuple(found for check in CHECKS for found in check.check(evidence))
