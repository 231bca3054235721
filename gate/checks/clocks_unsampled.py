"""Too few readings of the GPU's clock to say that it was steady.

What it does
    On a GPU run, voids an arm at a concurrency whose legs left fewer than 30 samples of the SM clock with the GPU at
    work, or in whose load windows the GPU was at work in less than half of the samples.
Why
    One sample has a spread of 0.00 %, and an empty summary has passed as a good one. A GPU that is idle for most of a
    leg is not what was measured.
Deciding numbers
    Busy samples of each GPU over the arm's legs, at least 30 (MIN_BUSY) and at least half of all (MIN_BUSY_SHARE); both
    as recorded by the harness that met these faults.
What to do
    Make legs longer (workload.requests_per_stream). Where NVML gives no clocks, no figure of this machine can bind.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.evidence import Evidence
from gate.checks.readings import Readings, busy_of_arm, devices, in_load, readings
from gate.observe.rows import ARMS, Arm, Finding

CODE = "clocks-unsampled"
TIMING_ONLY = True
CONSEQUENCE = True
HINT = "make legs longer (workload.requests_per_stream), and check that NVML gives clocks here (gate doctor)"

MIN_BUSY = 30
MIN_BUSY_SHARE = 0.5
NAME = "sm_clock_mhz"


def counts(evidence: Evidence, taken: Readings, concurrency: int, arm: Arm, device: str) -> tuple[int, int]:
    """(samples with the GPU at work, all samples) of the arm's load windows."""
    total = sum(len(in_load(taken, leg, f"{device}.{NAME}")) for leg in evidence.at(concurrency, arm))
    return len(busy_of_arm(evidence, taken, concurrency, arm, device, NAME)), total


def check(evidence: Evidence) -> Iterator[Finding]:
    if not evidence.plan.recipe.gpu:
        return
    taken = readings(evidence)
    for concurrency in evidence.concurrencies:
        for arm in [arm for arm in ARMS if evidence.at(concurrency, arm)]:
            for device in devices(taken) or ("gpu0",):
                at_work, total = counts(evidence, taken, concurrency, arm, device)
                if at_work < MIN_BUSY or at_work < MIN_BUSY_SHARE * total:
                    message = (
                        f"{device} was at work in {at_work} of {total} samples of the {arm}'s legs at c{concurrency}; "
                        f"expected at least {MIN_BUSY}, and at least {100 * MIN_BUSY_SHARE:.0f} % of them"
                    )
                    yield Finding(code=CODE, message=message, hint=HINT, arm=arm, concurrency=concurrency)
