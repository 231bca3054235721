"""Stamps that no clock can produce.

What it does
    Voids a leg in which a request's stamps are not in the order sent ≤ first token ≤ last token ≤ end, the token
    stamps run backwards, or do not agree with first and last.
Why
    A missing value written as 0, or two clocks mixed, gives a latency near zero or of hours. Either wins or loses
    a cell without meaning anything.
Deciding numbers
    The stamps of the first request that breaks the order.
What to do
    A fault of the recorder: report it with the run's requests.parquet.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, first
from gate.observe.rows import Finding, RequestRow

CODE = "impossible-times"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = "a fault of the recorder: report it with this run's requests.parquet"


def impossible(request: RequestRow) -> bool:
    path = (request.sent_ns, request.first_token_ns, request.last_token_ns, request.end_ns)
    stamps = [stamp for stamp in path if stamp is not None]
    tokens = request.token_times_ns
    if any(later < earlier for earlier, later in [*pairwise(stamps), *pairwise(tokens)]):
        return True
    ends = (tokens[0], tokens[-1]) if tokens else (None, None)
    if ends != (request.first_token_ns, request.last_token_ns):
        return True
    return bool(request.tokens_per_event) and len(tokens) != len(request.tokens_per_event)


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        bad = [request for request in leg.requests if impossible(request)]
        if bad:
            r = bad[0]
            message = (
                f"request {first(bad)}: sent {r.sent_ns}, first token {r.first_token_ns}, last token "
                f"{r.last_token_ns}, end {r.end_ns} ns; expected ascending stamps that agree with the token stamps"
            )
            yield void_leg(CODE, leg, message, HINT)
