"""0 Faults of a run over time, for cases: requests that took longer, samples that changed or are missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from gate.errors import UsageError
from gate.observe.rows import RequestRow
from gate.observe.rundata import RunData
from gate.selftest import good_telemetry

KINDS = frozenset({"telemetry", "stretch"})


def break_it(run: RunData, leg_id: str, fault: dict[str, Any]) -> RunData:
    """One [[fault]] of these kinds in one leg."""
    if fault["on"] == "stretch":
        factors = [dict(enumerate(fault.get(name, ()))) for name in ("ttft", "itl")]
        return stretch(run, leg_id, *factors)
    return good_telemetry.alter(
        run, leg_id, fault["name"], _change(fault), fault.get("since", 0.0), fault.get("until", 1.0)
    )


def _change(fault: dict[str, Any]) -> Callable[[float | None], float | None] | None:
    """Set to `value`, multiplied by `times`; None: lost."""
    if "value" in fault:
        return lambda _value: float(fault["value"])
    if "times" in fault:
        return lambda value: None if value is None else value * fault["times"]
    return None


def stretch(
    run: RunData, leg_id: str, ttft: Mapping[int, float] | None = None, itl: Mapping[int, float] | None = None
) -> RunData:
    """A leg whose requests take longer: factors of TTFT and of every gap, by index. Later waves are sent later."""
    leg = next(row for row in run.legs if row.leg_id == leg_id)
    rows = [row for row in run.requests if row.leg_id == leg_id]
    made = {row.index: _stamps(row, (ttft or {}).get(row.index, 1.0), (itl or {}).get(row.index, 1.0)) for row in rows}
    if all(made[row.index] == row.token_times_ns for row in rows):
        raise UsageError(f"{leg_id} takes as long as before", expected="a factor other than 1 of one of its requests")
    longer: dict[int, int] = {}
    for row in rows:
        wave, by = row.index // leg.concurrency, made[row.index][-1] - row.token_times_ns[-1]
        longer[wave] = max(longer.get(wave, 0), by, key=abs)
    moved = {
        row.index: _moved(row, made[row.index], sum(longer[w] for w in range(row.index // leg.concurrency)))
        for row in rows
    }
    end_ns = max(row.token_times_ns[-1] for row in moved.values())
    scale = (end_ns - leg.start_ns) / (leg.end_ns - leg.start_ns)
    return dataclasses.replace(
        run,
        legs=tuple(row.model_copy(update={"end_ns": end_ns}) if row is leg else row for row in run.legs),
        requests=tuple(moved[row.index] if row.leg_id == leg_id else row for row in run.requests),
        telemetry=tuple(
            row.model_copy(update={"t_ns": leg.start_ns + int((row.t_ns - leg.start_ns) * scale)})
            if row.leg_id == leg_id
            else row
            for row in run.telemetry
        ),
    )


def _stamps(row: RequestRow, ttft: float, itl: float) -> tuple[int, ...]:
    first = row.sent_ns + round((row.token_times_ns[0] - row.sent_ns) * ttft)
    return tuple(first + round((stamp - row.token_times_ns[0]) * itl) for stamp in row.token_times_ns)


def _moved(row: RequestRow, stamps: tuple[int, ...], by_ns: int) -> RequestRow:
    tokens = tuple(stamp + by_ns for stamp in stamps)
    times = {"first_token_ns": tokens[0], "last_token_ns": tokens[-1], "end_ns": tokens[-1], "token_times_ns": tokens}
    return row.model_copy(update={"sent_ns": row.sent_ns + by_ns} | times)
