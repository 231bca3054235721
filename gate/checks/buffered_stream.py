"""Tokens arrived in lumps: their times say when a buffer was flushed.

What it does
    Voids TTFT, TPOT and ITL of a leg whose reads carried more than 1.5 tokens on average. Throughput and E2EL stay:
    they need only the ends.
Why
    A server or proxy that collects tokens before it writes shows one gap where there were many. A whole answer in one
    read has a TPOT of 0 and a TTFT that is really the E2EL, and an arm that buffers is compared with one that streams.
Deciding numbers
    Tokens / reads that carried tokens, over the leg, at most 1.5 (MAX_TOKENS_PER_READ: a busy server merges two tokens
    now and then, and that must not void a leg).
What to do
    Where other work slowed the client, its reads come late and find more in the socket: quieten the host. Else find the
    buffer: a proxy, a delta merge in the server, Nagle's algorithm (TCP_NODELAY off).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence
from gate.observe.rows import Finding, RequestRow

CODE = "buffered-stream"
TIMING_ONLY = True
CONSEQUENCE = True
HINT = "find the buffer: a proxy, a delta merge in the server, TCP_NODELAY off"
HINT_BUSY = "other work kept this host busy, so that the client read late: stop it (top names it), then measure again"

MAX_TOKENS_PER_READ = 1.5
FAMILIES = ("ttft", "tpot", "itl")


def tokens_per_read(requests: Sequence[RequestRow]) -> float | None:
    """None when no token arrived. Where events do not say what they carried, usage does for all of them together."""
    tokens = read = 0
    for request in [r for r in requests if r.token_times_ns]:
        known = request.tokens_per_event
        tokens += sum(known) if known else (request.completion_tokens or 0)
        read += len(set(request.token_times_ns))
    return tokens / read if read else None


def check(evidence: Evidence) -> Iterator[Finding]:
    hint = HINT_BUSY if evidence.host_busy else HINT
    for leg in evidence.legs:
        found = tokens_per_read(leg.requests)
        if found is not None and found > MAX_TOKENS_PER_READ:
            for family in FAMILIES:
                message = (
                    f"{found:.2f} tokens a read; expected at most {MAX_TOKENS_PER_READ}: {family} is not observable"
                )
                yield void_leg(CODE, leg, message, hint, axis=family, beyond=found / MAX_TOKENS_PER_READ)
