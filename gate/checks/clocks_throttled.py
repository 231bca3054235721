"""Heat or power held the GPU back.

What it does
    Voids a leg in which NVML gave one of these reasons for a lower clock while the GPU was at work: software thermal
    slowdown, hardware slowdown, hardware thermal slowdown, power brake. Idle, a power cap under load and pinned clocks
    are normal.
Why
    A hardware slowdown halves the clock or worse, for whichever arm runs at that moment. Dropping only the samples that
    show it has left nothing at all: a cell without samples is void for a reason, not empty.
Deciding numbers
    Busy samples with one of those bits; 0 are allowed.
What to do
    Let the GPU cool, improve its air flow, check its power supply; `gate doctor` shows the bits at rest.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence
from gate.checks.readings import busy, devices, readings
from gate.observe.gpu import held_back
from gate.observe.rows import Finding

CODE = "clocks-throttled"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = "let the GPU cool, improve its air flow, check its power supply"


def check(evidence: Evidence) -> Iterator[Finding]:
    taken = readings(evidence)
    for leg in evidence.legs:
        for device in devices(taken):
            masks = busy(taken, leg, device, "throttle_mask")
            held = [mask for mask in masks if held_back(int(mask))]
            if held:
                words = ", ".join(sorted({reason for mask in held for reason in held_back(int(mask))}))
                message = f"{device}: {words} in {len(held)} of {len(masks)} samples; expected none"
                yield void_leg(CODE, leg, message, HINT)
