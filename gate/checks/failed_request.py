"""A request failed before it produced a token.

What it does
    Voids a leg in which a request ended with an error or an HTTP status other than 200 and no token arrived.
Why
    A refused or dropped request costs the server nothing: throughput rises and the slowest samples leave the
    latencies. Serving benchmarks have reported 1 success of 100 as a normal run.
Deciding numbers
    Failed requests in the leg; 0 are allowed.
What to do
    Read the server's log at that time. A 4xx is a wrong request or a limit of the server; a 5xx, a reset or a
    time-out is the server's fault.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, first
from gate.observe.rows import Finding, RequestRow

CODE = "failed-request"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = "read the server's log of this leg; a leg with a failed request measures a smaller workload"


def failed(request: RequestRow) -> bool:
    bad_status = request.http_status is not None and request.http_status != 200
    return request.first_token_ns is None and (request.error is not None or bad_status)


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        bad = [request for request in leg.requests if failed(request)]
        if bad:
            cause = bad[0].error or f"HTTP {bad[0].http_status}"
            message = f"{len(bad)} of {len(leg.requests)} requests failed ({first(bad)}: {cause}); expected 0"
            yield void_leg(CODE, leg, message, HINT)
        elif leg.row.failed > sum(request.error is not None for request in leg.requests):
            message = f"the client counted {leg.row.failed} failed requests, more than its records show; expected 0"
            yield void_leg(CODE, leg, message, HINT)
