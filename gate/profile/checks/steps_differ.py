"""The windows differ by another number of decode steps than their lengths say.

What it does
    Refuses the profile when a server that marks its steps (NVTX ranges, the engine under nsys) ran another number of
    decode steps between the two windows than output tokens × rounds.
Why
    Everything is divided by that number. Requests that do not decode together, or a step that is run and thrown away,
    change it, and counts can still come out whole.
Deciding numbers
    Ranges of decode steps in the long window less those in the short one: exactly (136 - 8) × rounds.
What to do
    See that the batch is fixed: all prompts in one prefill step (--prompt-tokens).
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.observe.rows import Finding
from gate.profile.checks.evidence import Evidence, finding
from gate.profile.difference import steps

CODE = "steps-differ"
REFUSES = True


def check(evidence: Evidence) -> Iterator[Finding]:
    for arm, role, short, long in evidence.pairs():
        if short.decode_steps is None or long.decode_steps is None:
            continue
        found, expected = long.decode_steps - short.decode_steps, steps(short, long)
        if found != expected:
            yield finding(
                CODE,
                arm,
                f"{arm}'s {role} windows differ by {found} decode steps; expected {expected}",
                "see that the batch is fixed (--prompt-tokens)",
                abs(found / expected - 1),
            )
