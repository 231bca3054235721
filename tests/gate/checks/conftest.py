"""`found`: what the whole list of checks says of a run, so that each test also sees what else its fault sets off."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gate.checks import findings
from gate.checks.evidence import Evidence
from gate.observe.rows import Finding
from gate.observe.rundata import RunData
from gate.selftest import time_faults


@pytest.fixture
def found() -> Callable[..., list[Finding]]:
    def of(run: RunData, code: str | None = None) -> list[Finding]:
        made = list(findings(Evidence.of(run)))
        return [finding for finding in made if code in (None, finding.code)]

    return of


@pytest.fixture
def stretch() -> Callable[..., RunData]:
    """A leg whose requests take longer: factors of TTFT and of every gap by index; later waves are sent later."""
    return time_faults.stretch
