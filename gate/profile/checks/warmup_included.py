"""Warm-up, or another client's work, is inside a window.

What it does
    Refuses the profile when a window was opened before the warm-up had ended, or when the server counted more tokens
    during it than its requests have.
Why
    Warm-up requests inside a window gave counts of 32 where 24 were sent: everything a third too slow, and integral.
Deciding numbers
    The window's start against the end of the warm-up; the server's own counters of prompt and generated tokens against
    requests × (prompt + output). One token a request is allowed: a server may book a step's tokens after its answer.
What to do
    See that nothing else talks to the server, and profile again.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.observe.rows import Finding
from gate.profile.checks.evidence import Evidence, finding

CODE = "warmup-included"
REFUSES = True
HINT = "see that nothing else talks to the server, and profile again"


def check(evidence: Evidence) -> Iterator[Finding]:
    for window in evidence.windows:
        where = f"{window.arm}'s {window.output_tokens}-token window"
        if window.start_ns < window.warmup_ended_ns:
            early_ms = (window.warmup_ended_ns - window.start_ns) / 1e6
            yield finding(CODE, window.arm, f"{where} began {early_ms:.1f} ms before the warm-up ended", HINT)
        expected = window.requests * (window.prompt_tokens + window.output_tokens)
        if window.counted_tokens is not None and window.counted_tokens > expected + window.requests:
            yield finding(
                CODE,
                window.arm,
                f"the server counted {window.counted_tokens} tokens in {where}; expected {expected} for its "
                f"{window.requests} requests",
                HINT,
                window.counted_tokens / expected,
            )
