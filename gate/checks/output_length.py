"""The server generated another number of tokens than were asked for.

What it does
    Voids a leg in which `usage.completion_tokens` differs from max_tokens (ignore_eos is set, so all of them are
    due), or from the tokens or ids that were streamed.
Why
    Shorter outputs are cheaper, and throughput from the requested length rewards stopping early. Where stream and
    usage disagree, one of them is wrong and TPOT cannot be known.
Deciding numbers
    usage.completion_tokens, tokens streamed and ids returned, against expected output tokens; all must be equal.
What to do
    Check that ignore_eos and max_tokens reach the server's sampler, and that max_model_len leaves room.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, first
from gate.observe.rows import Finding, RequestRow

CODE = "output-length"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = "check that ignore_eos and max_tokens reach the sampler and that max_model_len leaves room"


def counts(request: RequestRow) -> dict[str, int]:
    """Each count of the output that there is, by where it comes from."""
    found = {}
    if request.tokens_per_event or not request.token_times_ns:  # events without counts are not zero tokens
        found["streamed"] = sum(request.tokens_per_event)
    if request.completion_tokens is not None:
        found["usage.completion_tokens"] = request.completion_tokens
    if request.token_ids is not None:
        found["token_ids"] = len(request.token_ids)
    return found


def wrong_length(request: RequestRow) -> bool:
    if request.error is not None or request.completion_tokens is None:
        return False
    return set(counts(request).values()) != {request.expected_output_tokens}


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        bad = [request for request in leg.requests if wrong_length(request)]
        if bad:
            found = ", ".join(f"{name} {count}" for name, count in counts(bad[0]).items())
            message = f"request {first(bad)}: {found}; expected {bad[0].expected_output_tokens}"
            yield void_leg(CODE, leg, message, HINT)
