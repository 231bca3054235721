"""A stream ended without saying that it was finished.

What it does
    Voids a leg in which a request without an error lacks a finish_reason or the closing [DONE].
Why
    A proxy or a dying worker can close the socket politely. Without the two closing marks nobody knows whether the
    last token was the last.
Deciding numbers
    Requests without finish_reason or [DONE]; 0 are allowed.
What to do
    Check that the server ends every stream with a finish_reason and `data: [DONE]`, and that no proxy is between.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, first
from gate.checks.failed_request import failed
from gate.observe.rows import Finding, RequestRow

CODE = "truncated-stream"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = "the server must end each stream with a finish_reason and data: [DONE]; look for a proxy or a dying worker"


def truncated(request: RequestRow) -> bool:
    whole = request.error is None and not failed(request)
    return whole and (request.finish_reason is None or not request.saw_done)


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        bad = [request for request in leg.requests if truncated(request)]
        if bad:
            lacks = "finish_reason" if bad[0].finish_reason is None else "[DONE]"
            message = f"{len(bad)} of {len(leg.requests)} streams ended without {lacks} ({first(bad)}); expected 0"
            yield void_leg(CODE, leg, message, HINT)
