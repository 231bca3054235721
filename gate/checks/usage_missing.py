"""A request without the server's own token counts.

What it does
    Voids a leg in which a request that did not fail has no `usage` with prompt and completion tokens.
Why
    Counting chunks, counting text with a tokenizer and assuming the requested length are three other numbers, and
    each has been published as a throughput.
Deciding numbers
    Requests without usage.prompt_tokens or usage.completion_tokens; 0 are allowed.
What to do
    The server must honour `stream_options: {"include_usage": true}` on /v1/completions.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, first
from gate.checks.failed_request import failed
from gate.observe.rows import Finding, RequestRow

CODE = "usage-missing"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = 'the server must honour stream_options {"include_usage": true}'


def uncounted(request: RequestRow) -> bool:
    whole = request.error is None and not failed(request)
    return whole and (request.prompt_tokens is None or request.completion_tokens is None)


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        bad = [request for request in leg.requests if uncounted(request)]
        if bad:
            message = f"{len(bad)} of {len(leg.requests)} requests have no usage ({first(bad)}); expected all to"
            yield void_leg(CODE, leg, message, HINT)
