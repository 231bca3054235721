"""Nobody was looking for part of a leg.

What it does
    Voids a leg whose load window has a stretch of more than two seconds without a sample of the host, or on a GPU run
    without the SM clock of one of its GPUs. Samples outside the window do not count.
Why
    A sampler that hung, or a reading of the repetition before, has passed for a measurement: "twice the power" was one.
    What happened in the hole (throttling, a neighbour, a memory peak) nobody can say, so that it is no evidence.
Deciding numbers
    The longest stretch between two samples, from the first send to the last stream end, at most 2 s (MAX_GAP_S: the
    sampler's period is 0.5 s, and on two cores that also serve and drive the longest stretch seen was 0.6 s).
What to do
    Quieten the host, so that the sampler gets its turn; where NVML stopped answering, look at dmesg for the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, Leg
from gate.checks.readings import Readings, Sample, devices, in_load, readings
from gate.observe.rows import Finding

CODE = "telemetry-hole"
TIMING_ONLY = True
CONSEQUENCE = True
HINT = "quieten the host; where NVML stopped answering, look at dmesg for the driver"

MAX_GAP_S = 2.0
HOST = "host_available_bytes"
GPU = "sm_clock_mhz"


def longest_s(leg: Leg, samples: Sequence[Sample]) -> float:
    """Longest stretch of the load window without a sample."""
    stamps = [leg.row.start_ns, *(sample.t_ns for sample in samples), leg.row.end_ns]
    return max(later - earlier for earlier, later in pairwise(stamps)) / 1e9


def streams(evidence: Evidence, taken: Readings) -> list[str]:
    """Names that every leg should have samples of."""
    gpus = devices(taken) or ("gpu0",)
    return [HOST, *(f"{device}.{GPU}" for device in gpus if evidence.plan.recipe.gpu)]


def check(evidence: Evidence) -> Iterator[Finding]:
    taken = readings(evidence)
    for leg in evidence.legs:
        for name in streams(evidence, taken):
            found = longest_s(leg, in_load(taken, leg, name))
            if found > MAX_GAP_S:
                message = f"no {name} for {found:.1f} s of the leg; expected a sample every {MAX_GAP_S:.0f} s"
                yield void_leg(CODE, leg, message, HINT, beyond=found / MAX_GAP_S)
