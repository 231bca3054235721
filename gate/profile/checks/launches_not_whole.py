"""A kernel's launches per step are not a whole number.

What it does
    Refuses the profile when the difference of the windows, divided by the steps between them, is no whole number of
    launches to three decimals. Several kernels of one family whose counts are whole together are one kernel under
    changing names (a heuristic that picks by context length), and pass.
Why
    A step does the same work each time, so whole counts show that start-up, prefill and warm-up cancelled and that
    nothing was dropped. 114.703 launches a step, with half the wall time explained, was two lifetimes subtracted.
Deciding numbers
    |launches per step - nearest whole number| < 0.0005, a kernel or a family.
What to do
    At concurrency above 1, see that the batch is fixed: all prompts in one prefill step (--prompt-tokens), no request
    ending early. Otherwise look for dropped records in the profiler's own log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gate.observe.rows import Finding
from gate.profile.checks.evidence import Evidence, finding
from gate.profile.difference import step_kernels
from gate.profile.rows import StepKernel

CODE = "launches-not-whole"
REFUSES = True
TOLERANCE = 5e-4
HINT = "see that the batch is fixed (--prompt-tokens) and that the profiler dropped nothing"


def check(evidence: Evidence) -> Iterator[Finding]:
    for arm, role, short, long in evidence.pairs():
        broken = fractional(step_kernels(short, long))
        if broken:
            worst = max(broken, key=lambda kernel: kernel.us)
            yield finding(
                CODE,
                arm,
                f"{arm}'s {role} windows differ by {worst.launches:.3f} launches a step of {worst.name[:60]} "
                f"({len(broken)} such kernels); expected whole numbers",
                HINT,
            )


def fractional(kernels: tuple[StepKernel, ...]) -> list[StepKernel]:
    """Kernels with a fraction that those of the same family do not make whole."""
    odd: dict[str, list[StepKernel]] = defaultdict(list)
    for kernel in kernels:
        if not _whole(kernel.launches):
            odd[kernel.family].append(kernel)
    return [k for group in odd.values() if not _whole(sum(one.launches for one in group)) for k in group]


def _whole(value: float) -> bool:
    return abs(value - round(value)) < TOLERANCE and value > -TOLERANCE
