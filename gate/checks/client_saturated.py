"""The load generator was the bottleneck, or too late to tell the time.

What it does
    Voids a leg in which the client used more than 30 % of the one core it runs on, or in which its event loop was late,
    in one of a hundred turns, by more of the leg's median TPOT than repetitions may differ.
Why
    A client that waits for itself measures itself: session settings alone have turned 486 tok/s into 44 with the
    server unchanged, and loop delay is recorded as TTFT and ITL.
Deciding numbers
    Client CPU seconds / leg seconds, at most 0.3 (MAX_CPU_SHARE: an event then waits for 0.2 of its cost on average,
    ρ / 2(1 − ρ) of a queue with constant service, and bursts for more). p99 of loop lag / median TPOT, at most
    protocol.max_spread, 5 % unless the recipe says otherwise: a later stamp is an error of the size that counts.
What to do
    Where the host was busy before the run, quieten it. Else give the client a core of its own; lower the concurrency;
    compare with `gate calibrate-client`.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, Leg
from gate.metrics.tpot import tpot_ms
from gate.observe.rows import Finding
from gate.stats.median import median

CODE = "client-saturated"
TIMING_ONLY = True
CONSEQUENCE = True
HINT = "give the client a core of its own, or lower the concurrency"
HINT_BUSY = "other work kept this host busy before the run: stop it (top names it), then measure again"

MAX_CPU_SHARE = 0.3


def cpu_share(leg: Leg) -> float | None:
    """Of one core; None when it was not measured or the leg took no time."""
    if leg.row.client_cpu_s is None or leg.duration_s <= 0:
        return None
    return leg.row.client_cpu_s / leg.duration_s


def lag_in_tpot(leg: Leg) -> float | None:
    """p99 of loop lag over the leg's median TPOT."""
    middle = median([tpot_ms(request) for request in leg.requests])
    if leg.row.client_loop_lag_p99_ms is None or middle is None or middle <= 0:
        return None
    return leg.row.client_loop_lag_p99_ms / middle


def check(evidence: Evidence) -> Iterator[Finding]:
    hint = HINT_BUSY if evidence.host_busy else HINT
    max_lag = evidence.plan.recipe.protocol.max_spread
    for leg in evidence.legs:
        share, lag = cpu_share(leg), lag_in_tpot(leg)
        if share is not None and share > MAX_CPU_SHARE:
            message = f"the client used {100 * share:.0f} % of a core; expected at most {100 * MAX_CPU_SHARE:.0f} %"
            yield void_leg(CODE, leg, message, hint, beyond=share / MAX_CPU_SHARE)
        if lag is not None and lag > max_lag:
            message = (
                f"the client's loop was {leg.row.client_loop_lag_p99_ms:.2f} ms late at p99, {100 * lag:.0f} % of the "
                f"median TPOT; expected at most {100 * max_lag:.0f} %"
            )
            yield void_leg(CODE, leg, message, hint, beyond=lag / max_lag)
