"""`found`: what the whole list of checks says of a run, so that each test also sees what else its fault sets off."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from gate.checks import findings
from gate.checks.evidence import Evidence
from gate.observe.rows import Finding
from gate.observe.rundata import RunData


@pytest.fixture
def found() -> Callable[..., list[Finding]]:
    def of(run: RunData, code: str | None = None) -> list[Finding]:
        made = list(findings(Evidence.of(run)))
        return [finding for finding in made if code in (None, finding.code)]

    return of


@pytest.fixture
def stretch() -> Callable[..., RunData]:
    """A leg whose requests take longer: factors of TTFT and of every gap by index; later waves are sent later."""

    def of(run: RunData, leg_id: str, ttft: dict[int, float] | None = None, itl: dict[int, float] | None = None) -> Any:
        rows = [row for row in run.requests if row.leg_id == leg_id]
        streams = rows[0].concurrency
        longer: dict[int, int] = defaultdict(int)
        made = {}
        for row in rows:
            tokens = row.token_times_ns
            first = row.sent_ns + round((tokens[0] - row.sent_ns) * (ttft or {}).get(row.index, 1.0))
            stamps = tuple(first + round((t - tokens[0]) * (itl or {}).get(row.index, 1.0)) for t in tokens)
            wave = row.index // streams
            longer[wave] = max(longer[wave], stamps[-1] - tokens[-1], key=abs)
            made[row.index] = (row.sent_ns, stamps)
        moved = []
        for row in rows:
            shift = sum(longer[wave] for wave in range(row.index // streams))
            sent, stamps = made[row.index][0] + shift, tuple(t + shift for t in made[row.index][1])
            times = {"sent_ns": sent, "first_token_ns": stamps[0], "last_token_ns": stamps[-1], "end_ns": stamps[-1]}
            moved.append(row.model_copy(update=times | {"token_times_ns": stamps}))
        others = [row for row in run.requests if row.leg_id != leg_id]
        end = max(row.token_times_ns[-1] for row in moved)
        legs = tuple(leg.model_copy(update={"end_ns": end}) if leg.leg_id == leg_id else leg for leg in run.legs)
        return dataclasses.replace(run, legs=legs, requests=(*others, *moved))

    return of
