"""Prompts were answered from a prefix cache.

What it does
    Voids an arm that reports prefix caching as enabled, a leg whose hit counter rose by more than unique prompts can
    explain, and a leg in which a request reports more cached prompt tokens than two prompts may share.
Why
    With a fixed seed and a warm cache TTFT has come out 49 times lower and throughput 2.3 times higher, by an
    amount that varies along the sweep.
Deciding numbers
    prefix_caching read back: must not be true. Hit tokens of the leg, at most max_common_prefix × requests; cached
    tokens of a request, at most max_common_prefix (the recipe's bound on any two prompts).
What to do
    Switch prefix caching off on both arms, or reset the cache before each leg.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checks.base import void_leg
from gate.checks.evidence import Evidence, Leg
from gate.observe.rows import ARMS, Finding

CODE = "prefix-cache-on"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = "switch prefix caching off on both arms"


def hits(leg: Leg, shared_tokens: int) -> tuple[int, int] | None:
    """(tokens found, tokens allowed) when the leg was helped by a cache."""
    allowed = shared_tokens * len(leg.requests)
    counted = leg.row.prefix_cache_hit_tokens
    if counted is not None and counted > allowed:
        return counted, allowed
    most = max((r.cached_prompt_tokens for r in leg.requests if r.cached_prompt_tokens is not None), default=None)
    return (most, shared_tokens) if most is not None and most > shared_tokens else None


def check(evidence: Evidence) -> Iterator[Finding]:
    for arm in ARMS:
        identity = evidence.identity(arm)
        if identity is not None and identity.prefix_caching is True:
            message = f"the {arm} reports prefix caching on; expected off"
            yield Finding(code=CODE, message=message, hint=HINT, arm=arm)
    for leg in evidence.legs:
        found = hits(leg, evidence.plan.recipe.workload.max_common_prefix)
        if found is not None:
            message = f"{found[0]} prompt tokens came from a prefix cache; expected at most {found[1]}"
            yield void_leg(CODE, leg, message, HINT)
