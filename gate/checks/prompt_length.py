"""The server read another number of prompt tokens than were sent.

What it does
    Voids a leg in which `usage.prompt_tokens` differs from the number of token ids in the request.
Why
    A BOS added, a prompt decoded and tokenised again, a silent truncation: 1,000 ids have become 5,128. The arms
    then do different work and the ratio compares tokenizers.
Deciding numbers
    Observed against expected prompt tokens of each request; they must be equal.
What to do
    Send the prompt as token ids (the gate does) and find what the server puts before, behind or in place of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, first
from gate.observe.rows import Finding, RequestRow

CODE = "prompt-length"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = "find what the server adds to or cuts from prompts that are already token ids"


def wrong_length(request: RequestRow) -> bool:
    return request.prompt_tokens is not None and request.prompt_tokens != request.expected_prompt_tokens


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        bad = [request for request in leg.requests if wrong_length(request)]
        if bad:
            found, expected = bad[0].prompt_tokens, bad[0].expected_prompt_tokens
            message = f"usage.prompt_tokens is {found} in request {first(bad)}; expected {expected}"
            yield void_leg(CODE, leg, message, HINT)
