"""The load generator was the bottleneck, or too late to tell the time.

What it does
    Voids a leg in which the client used more than 30 % of the one core it runs on; and the axes that its event loop was
    too late for, in one of a hundred turns, by more of their times than repetitions may differ.
Why
    A client that waits for itself measures itself: session settings alone have turned 486 tok/s into 44 with the
    server unchanged, and loop delay is recorded as TTFT and ITL. Where the kernel stamped the reads (`client_stamps` of
    the leg is `kernel`), a late loop moves no stamp unless it finds two events of a stream in one read, which is seen.
    What it sends is late all the same: a closed loop's next request, which thins out the load of every axis, and all
    of an open loop, where TTFT counts from the schedule.
Deciding numbers
    Client CPU seconds / leg seconds, at most 0.3 (MAX_CPU_SHARE: an event then waits for 0.2 of its cost on average,
    ρ / 2(1 − ρ) of a queue with constant service, and bursts for more). p99 of loop lag, at most protocol.max_spread
    (5 % unless the recipe says otherwise) of the time between the two stamps that an axis is made of, each the leg's
    median: ITL, one gap, for which TPOT stands; TTFT; TPOT, from the first token to the last; E2EL, then all.
    One late event of a short leg at 0.43 ms is 7 % of a gap of 6 ms and 0.06 % of the 757 ms that TPOT is taken over.
    With the kernel's stamps: E2EL, then all; TTFT of an open loop; and any of the three where more than 1 % of its
    stamps (MAX_MERGED: as many turns may be late) are those of something later in the same read: ITL, of the token
    events, by the next one or the stream's end; TTFT, of the first tokens; TPOT, of the requests at either.
What to do
    Where the host was busy before the run, quieten it. Else give the client a core of its own; lower the concurrency;
    compare with `gate calibrate-client`.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, Leg
from gate.metrics.e2el import e2el_ms
from gate.metrics.tpot import tpot_ms
from gate.metrics.ttft import ttft_ms
from gate.observe.rows import Finding
from gate.stats.median import median

CODE = "client-saturated"
TIMING_ONLY = True
CONSEQUENCE = True
HINT = "give the client a core of its own, or lower the concurrency"
HINT_BUSY = "other work kept this host busy before the run: stop it (top names it), then measure again"

MAX_CPU_SHARE = 0.3
MAX_MERGED = 0.01
SPANS = {
    None: "the median E2EL",
    "ttft": "the median TTFT",
    "tpot": "the median time from first to last token",
    "itl": "the median TPOT",
}


def cpu_share(leg: Leg) -> float | None:
    """Of one core; None when it was not measured or the leg took no time."""
    if leg.row.client_cpu_s is None or leg.duration_s <= 0:
        return None
    return leg.row.client_cpu_s / leg.duration_s


def spans_ms(leg: Leg) -> dict[str | None, float | None]:
    """Family of axes -> median time between the stamps it is made of; None is every axis."""
    generated = [
        None if tpot is None or request.completion_tokens is None else tpot * (request.completion_tokens - 1)
        for request in leg.requests
        for tpot in [tpot_ms(request)]
    ]
    return {
        None: median([e2el_ms(request) for request in leg.requests]),
        "ttft": median([ttft_ms(request) for request in leg.requests]),
        "tpot": median(generated),
        "itl": median([tpot_ms(request) for request in leg.requests]),
    }


def lags(leg: Leg) -> dict[str | None, float]:
    """Family of axes -> p99 of loop lag as a share of its span, for those that have one."""
    lag = leg.row.client_loop_lag_p99_ms
    return {family: lag / span for family, span in spans_ms(leg).items() if lag is not None and span}


def merged(leg: Leg) -> dict[str, float]:
    """Family of axes -> share of its stamps that are those of a later event in the same read."""
    read = [request for request in leg.requests if request.token_times_ns]
    if not read:
        return {}
    first = [request.token_times_ns.count(request.token_times_ns[0]) > 1 for request in read]
    last = [request.token_times_ns[-1] == request.end_ns for request in read]
    events = sum(len(request.token_times_ns) for request in read)
    alone = sum(len(set(request.token_times_ns)) for request in read) - sum(last)
    return {
        "ttft": sum(first) / len(read),
        "tpot": sum(a or b for a, b in zip(first, last, strict=True)) / len(read),
        "itl": (events - alone) / events,
    }


def by_kernel(leg: Leg) -> set[str]:
    """Families of axes that a late loop does not move, since the kernel told their times."""
    if leg.row.client_stamps != "kernel":
        return set()
    sound = {family for family, share in merged(leg).items() if share <= MAX_MERGED}
    return sound - {"ttft"} if any(request.scheduled_ns is not None for request in leg.requests) else sound


def check(evidence: Evidence) -> Iterator[Finding]:
    hint = HINT_BUSY if evidence.host_busy else HINT
    max_lag = evidence.plan.recipe.protocol.max_spread
    for leg in evidence.legs:
        share = cpu_share(leg)
        if share is not None and share > MAX_CPU_SHARE:
            message = f"the client used {100 * share:.0f} % of a core; expected at most {100 * MAX_CPU_SHARE:.0f} %"
            yield void_leg(CODE, leg, message, hint, beyond=share / MAX_CPU_SHARE)
        sound = by_kernel(leg)
        late = {family: lag for family, lag in lags(leg).items() if lag > max_lag and family not in sound}
        for family, lag in late.items():
            if family is not None and None in late:
                continue  # what voids every axis is said once
            message = (
                f"the client's loop was {leg.row.client_loop_lag_p99_ms:.2f} ms late at p99, {100 * lag:.0f} % of "
                f"{SPANS[family]}; expected at most {100 * max_lag:.0f} %"
            )
            yield void_leg(CODE, leg, message, hint, axis=family, beyond=lag / max_lag)
