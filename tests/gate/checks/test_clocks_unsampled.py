"""clocks-unsampled: one sample has no spread."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

CLOCK, WORK = "gpu0.sm_clock_mhz", "gpu0.utilization_percent"


def kept(run: Any, arm: str, concurrency: int, total: int, busy: int) -> Any:
    """Leave so many clock samples to the arm's legs at one level, and so many of them busy."""
    legs = [leg.leg_id for leg in run.legs if (leg.arm, leg.concurrency) == (arm, concurrency)]
    ours = [row for row in run.telemetry if row.leg_id in legs and row.name == CLOCK]
    gone = {id(row) for row in ours[total:]}
    idle = {(row.leg_id, row.t_ns) for row in ours[busy:total]}
    rows = tuple(
        row.model_copy(update={"value": 0.0}) if row.name == WORK and (row.leg_id, row.t_ns) in idle else row
        for row in run.telemetry
        if id(row) not in gone
    )
    return dataclasses.replace(run, telemetry=rows)


@pytest.mark.parametrize(
    ("total", "busy", "void"),
    [(120, 120, False), (30, 30, False), (29, 29, True), (1, 1, True), (0, 0, True), (100, 50, False), (100, 49, True)],
)
def test_thirty_busy_samples_and_half_of_all(build: Any, found: Any, total: int, busy: int, void: bool) -> None:
    findings = found(kept(build.run(), "oracle", 2, total, busy))
    assert [(f.code, f.arm, f.concurrency) for f in findings] == ([("clocks-unsampled", "oracle", 2)] if void else [])
    if void:
        assert f"gpu0 was at work in {busy} of {total} samples" in findings[0].message


def test_a_gpu_run_without_any_clock_is_void_everywhere(build: Any, found: Any) -> None:
    run = dataclasses.replace(build.run(), telemetry=())
    assert {(f.code, f.arm, f.concurrency) for f in found(run)} == {
        ("clocks-unsampled", arm, concurrency) for arm in ("candidate", "oracle") for concurrency in (1, 2)
    }


def test_every_gpu_of_the_run_counts(build: Any, found: Any) -> None:
    run = build.run()
    one = next(row for row in run.telemetry if row.name == CLOCK)
    second = one.model_copy(update={"name": "gpu1.sm_clock_mhz"})
    findings = found(dataclasses.replace(run, telemetry=(*run.telemetry, second)), "clocks-unsampled")
    assert len(findings) == 4
    assert all(f.message.startswith("gpu1 was at work in") for f in findings)
    nothing = found(dataclasses.replace(run, telemetry=()))
    assert all(f.message.startswith("gpu0 was at work in 0 of 0") for f in nothing)


def test_a_run_without_a_gpu_has_no_clocks_to_sample(build: Any, found: Any) -> None:
    assert found(dataclasses.replace(build.run(gpu=False), telemetry=()), "clocks-unsampled") == []


def test_an_arm_that_did_not_run_is_not_accused(build: Any, found: Any) -> None:
    run = build.run()
    gone = [leg.leg_id for leg in run.legs if (leg.arm, leg.concurrency) == ("oracle", 2)]
    assert found(build.without_legs(run, *gone)) == []
