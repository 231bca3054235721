"""The two arms ran at different SM clocks, and their own load does not explain it.

What it does
    Voids a concurrency at which the arms' SM clocks differ by more than 1 %, in the median or in the mean of their busy
    samples, those left out that a power cap explains. Where one arm has no other, the clock of the one that was free
    may not be more than 1 % below any that the capped one reached: a cap only lowers a clock.
Why
    A difference of 12.8 % in the clock has made one of 7.2 % in step time, and was nearly called an improvement.
    Medians alone are not enough: they have been equal while the means were not. An arm that draws more power at the
    same limit runs at a lower clock and is slower for it, on this card and on the user's: that is the arm's own doing,
    and no other clock would be fairer.
Deciding numbers
    |candidate / oracle − 1| of the median and of the mean SM clock over busy samples, each at most 1 % (MAX_OFFSET, as
    recorded by the harness that met both faults). When a cap explains a sample: verdict.md, "Clocks at the power
    limit". Where all samples of both arms are capped, the power limit, read in every leg and the same in all, stands
    for the clock.
What to do
    Pin the clock (nvidia-smi -lgc) at one that both arms can keep.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from gate.checks.evidence import Evidence
from gate.checks.power_cap import Clocks, clocks
from gate.checks.readings import devices, readings
from gate.observe.rows import ARMS, Arm, Finding

CODE = "clock-offset"
TIMING_ONLY = True
CONSEQUENCE = True
HINT = "pin the clock (nvidia-smi -lgc) at one that both arms can keep"

MAX_OFFSET = 0.01
STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {"median": statistics.median, "mean": statistics.fmean}


def offsets(candidate: Sequence[float], oracle: Sequence[float]) -> dict[str, float]:
    """Relative difference of each statistic, candidate over oracle; empty when an arm has no sample or stands still."""
    if not candidate or not oracle:
        return {}
    pairs = {name: (statistic(candidate), statistic(oracle)) for name, statistic in STATISTICS.items()}
    return {name: (ours - theirs) / theirs for name, (ours, theirs) in pairs.items() if theirs > 0}


def shortfall(free: Sequence[float], capped: Sequence[float]) -> float:
    """How far an arm's free clock lies below the highest of one that was always capped, a share; at most 0 when not."""
    return (max(capped) - statistics.median(free)) / max(capped)


def check(evidence: Evidence) -> Iterator[Finding]:
    taken = readings(evidence)
    for concurrency in evidence.concurrencies:
        for device in devices(taken):
            at = clocks(evidence, taken, concurrency, device)
            for beyond, words, way in (*_apart(at, device), *_below(at, device)):
                message = f"{words} at c{concurrency}{at.why_all}; expected at most {100 * MAX_OFFSET:.0f} %{way}"
                yield Finding(code=CODE, message=message, hint=HINT, concurrency=concurrency, beyond=beyond)


def _apart(at: Clocks, device: str) -> Iterator[tuple[float, str, str]]:
    """(offset over its limit, what differs, which way is meant), of samples that both arms have."""
    numbers = " and ".join(str(len(at.free(arm))) for arm in ARMS)
    which = f" outside its power limit, in {numbers} samples," if at.explained else ""
    for name, offset in offsets(at.free("candidate"), at.free("oracle")).items():
        if abs(offset) > MAX_OFFSET:
            words = f"the {name} of {device}'s SM clock{which} is {100 * offset:+.1f} % in the candidate's legs"
            yield abs(offset) / MAX_OFFSET, words, " either way"


def _below(at: Clocks, device: str) -> Iterator[tuple[float, str, str]]:
    """The same of an arm that was free and slower than the other one, which never was."""
    pairs: tuple[tuple[Arm, Arm], ...] = (("candidate", "oracle"), ("oracle", "candidate"))
    for arm, other in pairs:
        free, capped = at.free(arm), at.busy(other)
        if free and capped and not at.free(other) and shortfall(free, capped) > MAX_OFFSET:
            short = shortfall(free, capped)
            words = (
                f"{device}'s SM clock without a power cap in the {arm}'s legs is {100 * short:.1f} % below the "
                f"{max(capped):.0f} MHz that the {other} reached under one"
            )
            yield short / MAX_OFFSET, words, ""
