"""7 Figures of two grids -> what changed, and whether it is a loss. Pure; the steps are those of docs/compare.md.

    candidate   d_i = ln(now_i / then_i)                       of the candidate, direction-normalised
    oracle      the same of the oracle: the control
    relative    candidate minus oracle: the change of the ratio

Repetition i of both grids had the same prompts. Each is a moderated paired t as a gate's own ratio is; a change of the
ratio has four legs in each pair and not two, so its prior is √2 wider.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gate.compare.record import Change, Figures, Moved, Outcome
from gate.stats.band import Band, assumed
from gate.stats.holm import adjusted
from gate.stats.interval import CONFIDENCE, Interval, moderated
from gate.stats.median import median, ratio
from gate.stats.pairs import log_ratios

ALPHA = (1 - CONFIDENCE) / 2
"""One end of the two-sided interval, shared by all cells after Holm."""
EXIT_CODES: dict[Outcome, int] = {"none": 0, "loss": 1, "undecided": 2, "host-moved": 2, "void": 3}


def moved(pairs: Sequence[tuple[Figures, Figures, Band | None]], share: float, same_machine: bool) -> tuple[Moved, ...]:
    """(then, now, noise of the host or None) of each cell -> the cell's change and verdict."""
    measured = [_intervals(then, now, band or assumed(share)) for then, now, band in pairs]
    # On another machine the figures themselves differ for that reason alone: only the ratio is judged.
    judged = [candidate if same_machine else relative for candidate, _, relative in measured]
    known = [k for k, interval in enumerate(judged) if interval is not None]
    slack = math.log1p(-share)
    p = dict(zip(known, adjusted([_below(judged[k], slack) for k in known]), strict=True))
    return tuple(
        _moved(then, now, share, measured[k], _verdict(*measured[k], slack, p.get(k), same_machine))
        for k, (then, now, _) in enumerate(pairs)
    )


def overall(cells: Sequence[Moved]) -> Outcome:
    """A loss anywhere is one; nothing lost needs every cell."""
    verdicts = {cell.verdict for cell in cells}
    if not verdicts - {"void"}:
        return "void"
    order: tuple[Outcome, ...] = ("loss", "host-moved", "undecided")
    return next((one for one in order if one in verdicts), "undecided" if "void" in verdicts else "none")


def _intervals(then: Figures, now: Figures, band: Band) -> tuple[Interval | None, Interval | None, Interval | None]:
    """Of the candidate's change, the oracle's, and the ratio's; None where there is not one pair."""
    count = min(len(then.candidate), len(now.candidate))
    direction = now.direction
    wide = replace(band, prior_sd=band.prior_sd * math.sqrt(2))
    rows = list(zip(now.candidate, then.candidate, now.oracle, then.oracle, strict=False))[:count]
    whole = [row for row in rows if all(value is not None and value > 0 for value in row)]
    relative = [
        c - o
        for c, o in zip(
            log_ratios([row[0] for row in whole], [row[1] for row in whole], direction),
            log_ratios([row[2] for row in whole], [row[3] for row in whole], direction),
            strict=True,
        )
    ]
    return (
        moderated(log_ratios(now.candidate[:count], then.candidate[:count], direction), band),
        moderated(log_ratios(now.oracle[:count], then.oracle[:count], direction), band),
        moderated(relative, wide),
    )


def _verdict(
    candidate: Interval | None,
    oracle: Interval | None,
    relative: Interval | None,
    slack: float,
    p: float | None,
    same_machine: bool,
) -> Outcome:
    judged = candidate if same_machine else relative
    if judged is None or p is None or relative is None:
        return "void"
    if p <= ALPHA:
        if relative.high < slack:
            return "loss"
        return "host-moved" if oracle is not None and oracle.high < slack else "undecided"
    return "none" if judged.low >= slack else "undecided"


def _below(interval: Interval | None, slack: float) -> float:
    assert interval is not None
    return interval.p_below(slack)


def _moved(
    then: Figures,
    now: Figures,
    share: float,
    intervals: tuple[Interval | None, Interval | None, Interval | None],
    verdict: Outcome,
) -> Moved:
    medians = [median(values) for values in (then.candidate, now.candidate, then.oracle, now.oracle)]
    before, after = medians[:2], medians[2:]
    return Moved(
        axis=now.axis,
        concurrency=now.concurrency,
        unit=now.unit,
        direction=now.direction,
        candidate_then=before[0],
        candidate_now=before[1],
        oracle_then=after[0],
        oracle_now=after[1],
        ratio_then=ratio(before[0], after[0], now.direction),
        ratio_now=ratio(before[1], after[1], now.direction),
        candidate=_change(intervals[0]),
        oracle=_change(intervals[1]),
        relative=_change(intervals[2]),
        band=share,
        verdict=verdict,
    )


def _change(interval: Interval | None) -> Change | None:
    if interval is None:
        return None
    return Change(ratio=math.exp(interval.mean), low=math.exp(interval.low), high=math.exp(interval.high))
