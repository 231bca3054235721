"""A recorded run at the power limit: two engines in turn on one H200 whose clock nobody could pin.

power_limited.csv holds its legs at 1 and 16 requests: clock, utilisation and reasons at 10 Hz, time as a share of the
load window. Its power limit was not read.
"""

from __future__ import annotations

import csv
import dataclasses
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gate.checks.evidence import Evidence
from gate.checks.power_cap import clocks
from gate.checks.readings import readings
from gate.checks.spread import spread
from gate.judge import judge
from gate.observe.rows import ARMS, TelemetryRow, Verdict

NAMES = ("sm_clock_mhz", "utilization_percent", "throttle_mask")
LIMIT = "gpu0.power_limit_w"
Sample = dict[str, Any]
LEVELS = (1, 16)


def recorded() -> dict[tuple[int, str, int], list[Sample]]:
    found: dict[tuple[int, str, int], list[Sample]] = defaultdict(list)
    with (Path(__file__).parent / "power_limited.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (int(row["concurrency"]), row["arm"], int(row["repetition"]))
            found[key].append({"share": float(row["share"]), **{name: float(row[name]) for name in NAMES}})
    return found


def run(build: Any, change: Callable[[Any, Sample], Sample | None] = lambda _leg, sample: sample) -> Any:
    """A good run with the recorded samples of its GPU, each changed for its leg; None loses the reason."""
    made = build.run(protocol={"concurrency": LEVELS})
    kept = [row for row in made.telemetry if row.name.partition(".")[2] not in NAMES and row.name != LIMIT]
    samples = recorded()
    for leg in made.legs:
        for sample in samples[leg.concurrency, leg.arm, leg.repetition]:
            t_ns = leg.start_ns + round(sample["share"] * (leg.end_ns - leg.start_ns))
            changed = change(leg, sample)
            for name in NAMES:
                value = sample[name] if changed is None else changed[name]
                lost = changed is None and name == "throttle_mask"
                kept.append(
                    TelemetryRow(
                        leg_id=leg.leg_id, t_ns=t_ns, source="nvml", name=f"gpu0.{name}", value=None if lost else value
                    )
                )
    return dataclasses.replace(made, telemetry=tuple(kept))


def slower(sample: Sample, factor: float) -> Sample:
    return sample | {"sm_clock_mhz": sample["sm_clock_mhz"] * factor}


def test_the_recorded_run_is_valid_and_says_that_power_decided(build: Any, found: Any) -> None:
    assert found(run(build)) == []
    report = judge(run(build))
    assert {cell.verdict for cell in report.cells if cell.primary} == {Verdict.PASS}
    assert any("clocks not pinned and gpu0 at its power limit in 76 %" in why for why in report.not_binding_because)
    assert any(note.startswith("gpu0 was at its power limit (not recorded): ") for note in report.notes)


def test_what_its_samples_are(build: Any) -> None:
    evidence = Evidence.of(run(build))
    for concurrency in LEVELS:
        at = clocks(evidence, readings(evidence), concurrency, "gpu0")
        assert at.explained
        assert min(at.busy("oracle")) < 0.95 * 1980
        for arm in ARMS:
            assert set(at.free(arm)) == {1980.0}
            assert min(len(leg.free) for leg in at.of(arm)) >= 3
            assert (spread([leg.mean for leg in at.of(arm)]) or 1.0) < 0.025


def test_without_the_reasons_it_is_void(build: Any, found: Any) -> None:
    """The candidate's clock at c1 stayed within 5 %."""
    findings = found(run(build, lambda _leg, _sample: None))
    assert {(f.code, f.arm, f.concurrency) for f in findings} == {
        ("clock-spread", "oracle", 1),
        ("clock-spread", "candidate", 16),
        ("clock-spread", "oracle", 16),
    }


@pytest.mark.parametrize("arm", ARMS)
def test_a_lower_clock_of_one_arm_is_seen_beside_its_caps(build: Any, found: Any, arm: str) -> None:
    made = run(build, lambda leg, sample: slower(sample, 0.985 if leg.arm == arm else 1.0))
    assert {(f.code, f.concurrency) for f in found(made)} == {("clock-offset", level) for level in LEVELS}


def test_a_ramp_of_capped_samples_is_seen_between_the_legs(build: Any, found: Any) -> None:
    def climbing(leg: Any, sample: Sample) -> Sample:
        first = leg.repetition == 0 and leg.arm == "oracle" and leg.concurrency == 16
        return slower(sample, 0.9) if first and sample["throttle_mask"] == 4 else sample

    (finding,) = found(run(build, climbing))
    assert (finding.code, finding.arm, finding.concurrency) == ("clock-spread", "oracle", 16)
    assert "mean SM clock by leg" in finding.message
