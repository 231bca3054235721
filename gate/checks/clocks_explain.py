"""The arms differ in time and not in cycles.

What it does
    Voids an axis at one concurrency whose arms differ in time beyond doubt while the same legs, at one clock, do not:
    latency times SM clock, throughput divided by it. The clock is that of samples which no power cap explains. Tails
    are left out: they rest on few requests. Without such clocks of every leg it says nothing.
Why
    Whatever lowered one arm's clock made the difference. NVBench confirms every change of time in cycles for the same
    reason; an offset too small for clock-offset is enough where noise is smaller still. A clock that a power cap lowers
    was lowered by the arm itself: equal cycles at a lower clock are then more time for the same work, a loss that users
    of this card have too, and no doubt about the measurement. So cycles under a cap are shown and void nothing.
Deciding numbers
    The 95 % intervals of verdict.md, with the prior of the declared band: the one of the paired log ratios of time
    excludes 0, the one of cycles holds 0, and its middle is at most half as far from 0.
What to do
    Pin the clock (nvidia-smi -lgc) at one that both arms can keep.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator

from gate.checks.evidence import Evidence
from gate.checks.power_cap import clocks
from gate.checks.readings import Readings, devices, readings
from gate.metrics import axes_for
from gate.observe.rows import ARMS, Arm, Finding
from gate.stats.band import assumed
from gate.stats.cycles import in_cycles, vanishes
from gate.stats.interval import moderated
from gate.stats.pairs import log_ratios

CODE = "clocks-explain"
TIMING_ONLY = True
CONSEQUENCE = True
HINT = "pin the clock (nvidia-smi -lgc) at one that both arms can keep"


def clocks_mhz(
    evidence: Evidence, taken: Readings, concurrency: int, arm: Arm, *, free: bool = False
) -> tuple[float | None, ...]:
    """Mean SM clock of each repetition's leg over all GPUs that worked; None where it was not read.

    free: without the samples that a power cap explains.
    """
    found: dict[int, list[float]] = defaultdict(list)
    for device in devices(taken):
        for leg in clocks(evidence, taken, concurrency, device).of(arm):
            found[leg.repetition] += leg.free if free else leg.busy
    means = {repetition: statistics.fmean(values) for repetition, values in found.items() if values}
    return tuple(means.get(repetition) for repetition in range(evidence.repetitions_at(concurrency)))


def check(evidence: Evidence) -> Iterator[Finding]:
    taken = readings(evidence)
    protocol = evidence.plan.recipe.protocol
    band = assumed(protocol.band)
    for concurrency in evidence.concurrencies:
        given = [clocks_mhz(evidence, taken, concurrency, arm, free=True) for arm in ARMS]
        if None in (*given[0], *given[1]):
            continue
        axes = axes_for(evidence.requests_per_leg(concurrency), protocol.primary)
        for axis in [axis for axis in axes if not axis.tail]:
            values = [evidence.values(axis, concurrency, arm) for arm in ARMS]
            cycles = [in_cycles(v, f, axis.direction) for v, f in zip(values, given, strict=True)]
            time = moderated(log_ratios(values[0], values[1], axis.direction), band)
            same_clock = moderated(log_ratios(cycles[0], cycles[1], axis.direction), band)
            if time is not None and same_clock is not None and vanishes(time, same_clock):
                message = (
                    f"{axis.name} at c{concurrency} differs by {100 * time.mean:+.2f} % in time and by "
                    f"{100 * same_clock.mean:+.2f} % in cycles; expected a difference in both or in neither"
                )
                yield Finding(code=CODE, message=message, hint=HINT, concurrency=concurrency, axis=axis.name)
