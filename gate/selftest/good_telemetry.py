"""0 The good run's telemetry: a host with memory to spare and one GPU, steady and at work; and ways to break it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from gate.errors import UsageError
from gate.observe.rows import LegRow, TelemetryRow
from gate.observe.rundata import RunData

SAMPLES = 40
"""Of each leg, evenly over its load window: one repetition alone has enough of them."""
STEADY = {
    "host_available_bytes": 100.0 * 2**30,
    "gpu0.sm_clock_mhz": 1980.0,
    "gpu0.utilization_percent": 100.0,
    "gpu0.throttle_mask": 0.0,
    "gpu0.power_limit_w": 700.0,
    "gpu0.temperature_c": 50.0,
}
HOST: dict[str, object] = {
    "boot_id": "boot-1",
    "suspended_ms": 0.0,
    "wall_step_ms": 0.0,
    "host_swapped_bytes": 0,
    "host_oom_kills": 0,
    "host_available_before_bytes": 100 * 2**30,
    "gpu_used_before_bytes": 60 * 2**30,
    "gpu_foreign_processes": (),
    "server_log_errors": 0,
}
"""Fields of every leg's row."""


def with_telemetry(run: RunData) -> RunData:
    legs = tuple(leg.model_copy(update=HOST) for leg in run.legs)
    return dataclasses.replace(run, legs=legs, telemetry=tuple(row for leg in legs for row in samples(leg)))


def samples(leg: LegRow) -> list[TelemetryRow]:
    length_ns = leg.end_ns - leg.start_ns
    return [
        TelemetryRow(
            leg_id=leg.leg_id,
            t_ns=leg.start_ns + k * length_ns // (SAMPLES - 1),
            source="nvml" if name.startswith("gpu") else "psutil",
            name=name,
            value=value,
        )
        for k in range(SAMPLES)
        for name, value in STEADY.items()
    ]


def alter(
    run: RunData,
    leg_id: str,
    name: str,
    change: Callable[[float | None], float | None] | None,
    since: float = 0.0,
    until: float = 1.0,
) -> RunData:
    """Change the leg's samples of one name, or drop them with None, between two shares of its load window.

    Raises UsageError when there is no such sample: a fault that hits nothing proves nothing.
    """
    leg = next(row for row in run.legs if row.leg_id == leg_id)
    length_ns = leg.end_ns - leg.start_ns

    def hit(row: TelemetryRow) -> bool:
        return (row.leg_id, row.name) == (leg_id, name) and since <= (row.t_ns - leg.start_ns) / length_ns <= until

    if not any(hit(row) for row in run.telemetry):
        raise UsageError(f"no sample {name} in {leg_id}", expected=f"one of {', '.join(STEADY)}")
    rows = [
        row.model_copy(update={"value": change(row.value)}) if hit(row) and change else row
        for row in run.telemetry
        if change is not None or not hit(row)
    ]
    return dataclasses.replace(run, telemetry=tuple(rows))
