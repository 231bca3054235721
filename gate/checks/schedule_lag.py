"""Open loop: requests were not sent when they were due.

What it does
    Voids an open-loop leg whose latest send is more than a tenth of the mean time between arrivals behind schedule.
Why
    A late sender thins the load out: the queue that the schedule would have built never forms, and the server looks
    faster than it is (coordinated omission).
Deciding numbers
    max(sent − scheduled), at most 0.1 (MAX_SHARE) of 1 / (rate per stream × concurrency).
What to do
    Lower the rate, or give the client a core of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, Leg
from gate.observe.rows import Finding

CODE = "schedule-lag"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = "lower the rate, or give the client a core of its own"

MAX_SHARE = 0.1


def worst_lag_ms(leg: Leg) -> float | None:
    """None in a leg without a schedule."""
    lags = [r.sent_ns - r.scheduled_ns for r in leg.requests if r.scheduled_ns is not None]
    return max(lags) / 1e6 if lags else None


def check(evidence: Evidence) -> Iterator[Finding]:
    rate = evidence.plan.recipe.workload.rate_per_stream
    if rate is None:
        return  # a closed loop: a recipe has a rate where it has a schedule, and nowhere else
    for leg in evidence.legs:
        allowed_ms = MAX_SHARE * 1000 / (rate * leg.row.concurrency)
        found = worst_lag_ms(leg)
        if found is not None and found > allowed_ms:
            message = f"a request was sent {found:.1f} ms late; expected at most {allowed_ms:.1f} ms"
            yield void_leg(CODE, leg, message, HINT, beyond=found / allowed_ms)
