"""The two arms of a repetition did not get the same complete set of prompts.

What it does
    Voids a leg that has not one record for each planned request, each index once; and voids both legs of a
    repetition whose prompts differ by index, or whose digest is not the planned one.
Why
    A throughput over 93 of 96 requests, the slowest three missing, is a better number and a wrong one. A ratio over
    two different prompt sets compares prompts.
Deciding numbers
    Records against planned requests; indices seen twice or never; prompt digests of both arms at each index.
What to do
    Measure again; if it repeats, the recorder loses rows or the workload is not seeded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, Leg
from gate.observe.rows import Finding

CODE = "request-set-incomplete"
TIMING_ONLY = False
CONSEQUENCE = False
HINT = "measure again; if it repeats, records are lost or the workload is not seeded"


def incomplete(leg: Leg) -> bool:
    return [request.index for request in leg.requests] != list(range(leg.planned.requests))


def set_digest(leg: Leg) -> str:
    """Digest of the leg's prompts in order, as the plan has it (workload.prompts_digest); "none" where it cannot be."""
    digest = hashlib.sha256()
    for request in leg.requests:
        try:
            digest.update(bytes.fromhex(request.prompt_sha256))
        except ValueError:
            return "none"
    return digest.hexdigest()


def differ(candidate: Leg, oracle: Leg) -> int | None:
    """The first index at which the two arms had different prompts."""
    theirs = {request.index: request.prompt_sha256 for request in oracle.requests}
    for request in candidate.requests:
        if request.index in theirs and theirs[request.index] != request.prompt_sha256:
            return request.index
    return None


def check(evidence: Evidence) -> Iterator[Finding]:
    for leg in evidence.legs:
        if incomplete(leg):
            seen = len({request.index for request in leg.requests})
            message = (
                f"{len(leg.requests)} records of {seen} different requests; "
                f"expected {leg.planned.requests}, one for each index"
            )
            yield void_leg(CODE, leg, message, HINT)
        elif (digest := set_digest(leg)) != leg.planned.prompts_sha256:
            message = f"the prompts' digest is {digest[:12]}; expected {leg.planned.prompts_sha256[:12]}, as planned"
            yield void_leg(CODE, leg, message, HINT)
    for concurrency in evidence.concurrencies:
        for candidate, oracle in evidence.pairs(concurrency):
            index = differ(candidate, oracle)
            if index is not None:
                for leg in (candidate, oracle):
                    message = (
                        f"prompt #{index} is not the one the other arm got; expected the same prompts in both arms"
                    )
                    yield void_leg(CODE, leg, message, HINT)
