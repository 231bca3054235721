"""Telemetry as the checks ask for it."""

from __future__ import annotations

import dataclasses
from typing import Any

from gate.checks.evidence import Evidence
from gate.checks.readings import busy, devices, in_load, readings


def test_samples_come_in_time_order_and_without_those_that_have_no_value(build: Any) -> None:
    run = build.run()
    leg = Evidence.of(run).legs[0]
    backwards = dataclasses.replace(run, telemetry=tuple(reversed(run.telemetry)))
    taken = readings(Evidence.of(backwards))
    stamps = [sample.t_ns for sample in in_load(taken, leg, "gpu0.sm_clock_mhz")]
    assert stamps == sorted(stamps)
    assert len(stamps) == 40
    silent = build.alter_telemetry(run, leg.name, "gpu0.sm_clock_mhz", lambda _: None, 0.0, 0.49)
    assert len(in_load(readings(Evidence.of(silent)), leg, "gpu0.sm_clock_mhz")) == 20


def test_what_was_never_sampled_is_empty(build: Any) -> None:
    run = build.run()
    evidence = Evidence.of(run)
    taken = readings(evidence)
    assert in_load(taken, evidence.legs[0], "gpu7.sm_clock_mhz") == ()
    nothing = readings(Evidence.of(dataclasses.replace(run, telemetry=())))
    assert busy(nothing, evidence.legs[0], "gpu0", "sm_clock_mhz") == ()
    assert devices(nothing) == ()


def test_gpus_are_named_once(build: Any) -> None:
    run = build.run()
    second = tuple(row.model_copy(update={"name": row.name.replace("gpu0", "gpu1")}) for row in run.telemetry)
    both = dataclasses.replace(run, telemetry=(*run.telemetry, *second))
    assert devices(readings(Evidence.of(both))) == ("gpu0", "gpu1")


def test_busy_is_any_utilisation_or_none_reported(build: Any) -> None:
    run = build.run()
    leg = Evidence.of(run).legs[0]

    def clocks(changed: Any) -> int:
        return len(busy(readings(Evidence.of(changed)), leg, "gpu0", "sm_clock_mhz"))

    utilisation = "gpu0.utilization_percent"
    assert clocks(build.alter_telemetry(run, leg.name, utilisation, lambda _: 1.0)) == 40
    assert clocks(build.alter_telemetry(run, leg.name, utilisation, lambda _: 0.0, 0.0, 0.49)) == 20
    assert clocks(build.alter_telemetry(run, leg.name, utilisation, None)) == 40


def test_only_samples_within_the_load_count(build: Any) -> None:
    run = build.run()
    leg = Evidence.of(run).legs[0]
    sample = next(row for row in run.telemetry if (row.leg_id, row.name) == (leg.name, "gpu0.sm_clock_mhz"))
    stamps = (leg.row.start_ns - 1, leg.row.start_ns, leg.row.end_ns, leg.row.end_ns + 1)
    rows = tuple(sample.model_copy(update={"t_ns": t_ns}) for t_ns in stamps)
    taken = readings(Evidence.of(dataclasses.replace(run, telemetry=rows)))
    assert [s.t_ns for s in in_load(taken, leg, "gpu0.sm_clock_mhz")] == [leg.row.start_ns, leg.row.end_ns]
