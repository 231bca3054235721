"""clocks-throttled: no leg is measured on a GPU that is held back."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest

HARDWARE = float(pynvml.nvmlClocksThrottleReasonHwSlowdown)
POWER_CAP = float(pynvml.nvmlClocksEventReasonSwPowerCap)


def test_one_sample_is_enough(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    (finding,) = found(build.alter_telemetry(run, leg, "gpu0.throttle_mask", lambda _: HARDWARE, 0.5, 0.52))
    assert (finding.code, finding.leg_id) == ("clocks-throttled", leg)
    assert finding.message == "gpu0: hardware slowdown in 1 of 40 samples; expected none"


def test_every_reason_is_named(build: Any, found: Any) -> None:
    run = build.run()
    heat = float(pynvml.nvmlClocksThrottleReasonHwThermalSlowdown)
    held = build.alter_telemetry(run, build.leg_id(run), "gpu0.throttle_mask", lambda _: HARDWARE + heat)
    assert "hardware slowdown, hardware thermal slowdown in 40 of 40" in found(held)[0].message


def test_a_power_cap_is_normal(build: Any, found: Any) -> None:
    run = build.run()
    assert found(build.alter_telemetry(run, build.leg_id(run), "gpu0.throttle_mask", lambda _: POWER_CAP)) == []


def test_what_an_idle_gpu_says_does_not_count(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    held = build.alter_telemetry(run, leg, "gpu0.throttle_mask", lambda _: HARDWARE, 0.5, 0.6)
    assert found(build.alter_telemetry(held, leg, "gpu0.utilization_percent", lambda _: 0.0, 0.5, 0.6)) == []


@pytest.mark.parametrize("value", [None, 0.0])
def test_no_mask_and_no_bit_are_silent(build: Any, found: Any, value: float | None) -> None:
    run = build.run()
    assert found(build.alter_telemetry(run, build.leg_id(run), "gpu0.throttle_mask", lambda _: value)) == []
