"""The two windows of an arm did not do the same requests.

What it does
    Refuses the profile when the windows differ in requests, prompt length or concurrency, or a request did not get
    exactly its output tokens.
Why
    The difference of two windows is decode steps only if everything else cancels. One request more in one of them adds
    a whole prefill to every kernel.
Deciding numbers
    Requests, completed requests, prompt tokens and concurrency of both windows: equal, and all completed.
What to do
    Look into the server's log for the request that failed; profile again.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.observe.rows import Finding
from gate.profile.checks.evidence import Evidence, finding

CODE = "request-count-differs"
REFUSES = True
HINT = "look into the server's log for the request that failed, and profile again"


def check(evidence: Evidence) -> Iterator[Finding]:
    for arm, role, short, long in evidence.pairs():
        for field in ("requests", "prompt_tokens", "concurrency", "rounds"):
            one, other = getattr(short, field), getattr(long, field)
            if one != other:
                yield finding(
                    CODE,
                    arm,
                    f"{arm}'s {role} windows have {field} {one} at {short.output_tokens} tokens and {other} at "
                    f"{long.output_tokens}; expected the same",
                    HINT,
                )
        for window in (short, long):
            if window.completed != window.requests:
                yield finding(
                    CODE,
                    arm,
                    f"{window.completed} of {window.requests} requests of {arm}'s {window.output_tokens}-token window "
                    "got exactly their tokens; expected all",
                    HINT,
                )
