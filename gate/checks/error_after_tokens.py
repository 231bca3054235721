"""A stream broke off with an error after it had delivered tokens.

What it does
    Voids a leg in which a request has tokens and also an error: an error object in the stream, a reset connection,
    a time-out.
Why
    HTTP 200, some tokens, an error object and [DONE] has been counted as a fast success. The request is shorter
    than asked and its time is not a latency.
Deciding numbers
    Requests with tokens and an error; 0 are allowed.
What to do
    Read the error and the server's log; repeated at one concurrency only it points to memory or pre-emption.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, first
from gate.observe.rows import Finding, RequestRow

CODE = "error-after-tokens"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = "read the server's log of this leg for the error it sent mid-stream"


def broke_off(request: RequestRow) -> bool:
    return request.first_token_ns is not None and request.error is not None


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        bad = [request for request in leg.requests if broke_off(request)]
        if bad:
            message = f"{len(bad)} of {len(leg.requests)} requests broke off ({first(bad)}: {bad[0].error}); expected 0"
            yield void_leg(CODE, leg, message, HINT)
