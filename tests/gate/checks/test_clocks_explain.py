"""clocks-explain: a difference in time that is none in cycles."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.clocks_explain import check
from gate.checks.evidence import Evidence
from gate.judge import judge
from gate.metrics import AXES
from gate.observe.rows import Verdict

CLOCK = "gpu0.sm_clock_mhz"
MHZ = 1980.0


def run(build: Any, speed: float, clock: float) -> Any:
    """A candidate with this speed and clock, both relative to the oracle's."""
    made = build.run(lambda leg: speed if leg.arm == "candidate" else 1.0)
    for leg in [leg for leg in made.legs if leg.arm == "candidate"]:
        made = build.alter_telemetry(made, leg.leg_id, CLOCK, lambda _: MHZ * clock, 0.0)
    return made


@pytest.mark.parametrize("change", [0.991, 1.009])
def test_a_difference_that_the_clock_made_is_void(build: Any, found: Any, change: float) -> None:
    """0.9 %: below clock-offset's limit, beyond the interval of ± 0.58 %."""
    findings = found(run(build, change, change))
    assert {f.code for f in findings} == {"clocks-explain"}
    assert {"output_throughput", "tpot_median_ms"} <= {f.axis for f in findings}
    assert {f.concurrency for f in findings} == {1, 2}
    assert not {axis.name for axis in AXES if axis.tail} & {f.axis for f in findings}
    assert f"{100 * (change - 1):+.1f}"[:4] in findings[0].message
    assert "+0.00 % in cycles" in findings[0].message or "-0.00 % in cycles" in findings[0].message


@pytest.mark.parametrize(
    ("speed", "clock"),
    [(0.98, 1.0), (0.98, 0.991), (1.0, 0.991), (0.996, 0.996)],
    ids=["a slower arm at one clock", "mostly slower", "as fast at a lower clock", "too small to tell in time"],
)
def test_what_the_clock_does_not_explain_stays(build: Any, found: Any, speed: float, clock: float) -> None:
    assert "clocks-explain" not in {f.code for f in found(run(build, speed, clock))}


@pytest.mark.parametrize("arm", ["candidate", "oracle"])
def test_a_leg_whose_clock_was_not_read_leaves_its_level_unjudged(build: Any, arm: str) -> None:
    made = run(build, 0.991, 0.991)
    blind = build.leg_id(made, arm, 1, 1)
    made = dataclasses.replace(made, telemetry=tuple(row for row in made.telemetry if row.leg_id != blind))
    assert {f.concurrency for f in check(Evidence.of(made))} == {2}


def test_the_cell_shows_the_ratio_in_cycles(build: Any) -> None:
    report = judge(run(build, 0.98, 0.995))
    cell = next(c for c in report.cells if (c.axis, c.concurrency) == ("tpot_median_ms", 2))
    assert cell.verdict is not Verdict.VOID
    assert cell.ratio == pytest.approx(0.98, abs=1e-4)
    assert cell.cycles_ratio == pytest.approx(0.98 / 0.995, abs=1e-4)


def test_without_a_gpu_there_are_no_cycles(build: Any) -> None:
    report = judge(dataclasses.replace(build.run(gpu=False), telemetry=()))
    assert {c.cycles_ratio for c in report.cells} == {None}


def test_a_clock_that_the_arm_lowered_itself_explains_nothing(build: Any, found: Any) -> None:
    """At the power limit the arm that draws more is slower, by its clock alone: that is its own time."""
    made = run(build, 0.991, 1.0)
    for leg in [leg for leg in made.legs if leg.arm == "candidate"]:
        made = build.alter_telemetry(made, leg.leg_id, CLOCK, lambda _: MHZ * 0.982, 0.0, 0.5)
    assert {f.code for f in found(made)} == {"clocks-explain"}
    for leg in made.legs:
        made = build.alter_telemetry(made, leg.leg_id, "gpu0.throttle_mask", lambda _: 4.0, 0.0, 0.5)
    assert found(made) == []
    cells = {c.axis: c for c in judge(made).cells if c.concurrency == 2}
    assert cells["tpot_median_ms"].cycles_ratio == pytest.approx(1.0, abs=2e-3)


def test_a_lower_clock_outside_the_cap_still_does(build: Any, found: Any) -> None:
    made = run(build, 0.991, 0.991)
    for leg in made.legs:
        made = build.alter_telemetry(made, leg.leg_id, CLOCK, lambda _: 1700.0, 0.0, 0.5)
        made = build.alter_telemetry(made, leg.leg_id, "gpu0.throttle_mask", lambda _: 4.0, 0.0, 0.5)
    assert {f.code for f in found(made)} == {"clocks-explain"}


def test_without_a_sample_outside_the_cap_it_says_nothing(build: Any, found: Any) -> None:
    made = run(build, 0.991, 0.991)
    for leg in made.legs:
        made = build.alter_telemetry(made, leg.leg_id, "gpu0.throttle_mask", lambda _: 4.0)
    assert found(made) == []
