"""5 Telemetry of a run, as the checks ask for it: samples of one leg's load window, GPU clocks while the GPU worked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from gate.checks.evidence import Evidence, Leg
from gate.observe.rows import Arm

PER_GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Sample:
    t_ns: int
    value: float


Readings = Mapping[str, Mapping[str, tuple[Sample, ...]]]
"""Leg -> name -> samples that have a value, in time order; only what has one."""


def readings(evidence: Evidence) -> Readings:
    found: dict[str, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for row in evidence.run.telemetry:
        if row.value is not None:
            found[row.leg_id][row.name].append(Sample(row.t_ns, row.value))
    return {
        leg: {name: tuple(sorted(samples, key=lambda sample: sample.t_ns)) for name, samples in names.items()}
        for leg, names in found.items()
    }


def devices(taken: Readings) -> tuple[str, ...]:
    """ "gpu0", …: every GPU of which the run has a reading."""
    names = {name.partition(".")[0] for leg in taken.values() for name in leg}
    return tuple(sorted(name for name in names if name.startswith(PER_GPU)))


def in_load(taken: Readings, leg: Leg, name: str) -> tuple[Sample, ...]:
    """Samples between the first send and the last stream end, both included."""
    samples = taken.get(leg.name, {}).get(name, ())
    return tuple(sample for sample in samples if leg.row.start_ns <= sample.t_ns <= leg.row.end_ns)


def busy_samples(taken: Readings, leg: Leg, device: str, name: str) -> tuple[Sample, ...]:
    """Those in the load window taken while the GPU worked; all of them where it does not report its utilisation.

    An idle GPU lowers its clocks: those samples say nothing about the work.
    """
    at_work = {sample.t_ns: sample.value > 0 for sample in in_load(taken, leg, f"{device}.utilization_percent")}
    return tuple(s for s in in_load(taken, leg, f"{device}.{name}") if at_work.get(s.t_ns, True))


def busy(taken: Readings, leg: Leg, device: str, name: str) -> tuple[float, ...]:
    """Their values."""
    return tuple(sample.value for sample in busy_samples(taken, leg, device, name))


def busy_of_arm(
    evidence: Evidence, taken: Readings, concurrency: int, arm: Arm, device: str, name: str
) -> tuple[float, ...]:
    """The same over all legs of an arm at one concurrency, in the order they ran."""
    return tuple(value for leg in evidence.at(concurrency, arm) for value in busy(taken, leg, device, name))
