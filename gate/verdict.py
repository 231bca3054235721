"""7 The decision rule. Starts INCONCLUSIVE and upgrades on evidence; numbered like docs/verdict.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gate import errors
from gate.observe.rows import Finding, Verdict
from gate.report.model import Cell, Reason, TokenCell
from gate.stats.apart import Apart
from gate.stats.band import Band
from gate.stats.holm import adjusted
from gate.stats.interval import CONFIDENCE, Interval, moderated
from gate.tokens.compare import NOT_ASKED, Comparison
from gate.tokens.noise import ALLOWED, FAULT, Loud, loud
from gate.units import ratio as shown

AGREEMENT_IN_BANDS = 0.5
"""Step 5: an undecided cell whose ratio of medians and mean paired ratio differ by more than half a band is named
`estimates-disagree`: one odd repetition keeps it from a decision. It is a name and not a veto: as a veto it cost 14 of
100 true decisions in simulation and prevented no false one that the interval had not."""

FAMILY_ALPHA = 0.025
"""Step 6: chance of one false FAIL among all primary cells; one end of the 95 % interval."""

RESUME = "gate resume runs what is missing"

EXIT_CODES = {
    Verdict.PASS: errors.PASS,
    Verdict.FAIL: errors.FAIL,
    Verdict.INCONCLUSIVE: errors.INCONCLUSIVE,
    Verdict.VOID: errors.VOID,
}


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict on one cell and what it rests on."""

    verdict: Verdict
    reasons: tuple[Reason, ...] = ()
    interval: Interval | None = None
    apart: Apart | None = None
    """Set where it decides in place of an interval: step 1b."""


def reasons_of(findings: Sequence[Finding]) -> tuple[Reason, ...]:
    """Findings as reasons, each said once."""
    unique = dict.fromkeys((f.code, f.message, f.hint, f.leg_id, f.beyond) for f in findings)
    return tuple(
        Reason(code=code, message=message, hint=hint, leg_id=leg_id, beyond=beyond)
        for code, message, hint, leg_id, beyond in unique
    )


def cell(
    log_ratios: Sequence[float],
    ratio: float | None,
    *,
    planned_pairs: int,
    floor: float,
    band: Band,
    findings: Sequence[Finding],
    confidence: float = CONFIDENCE,
    apart: Apart | None = None,
    max_spread: float = 0.0,
) -> Decision:
    """Steps 1 to 5 for one axis at one concurrency; confidence is that of this look (stats/looks.py).

    apart: only where every finding says that the figures moved, and none that they are of something else. max_spread is
    the recipe's: by how much equal repetitions may differ.
    """
    # 1  A finding that covers the cell voids it: nothing below is computed.
    # 1b Unless the arms lie so far apart that whatever moved cannot matter: an answer, and still no ratio.
    if findings:
        void = Decision(Verdict.VOID, reasons_of(findings))
        if apart is not None and apart.clears(floor, max_spread):
            return replace(void, verdict=Verdict.PASS, apart=apart)
        return void
    undecided = Decision(Verdict.INCONCLUSIVE)

    # 2  Without a pair there is no ratio; without all pairs the pre-declared protocol was not carried out.
    interval = moderated(log_ratios, band, confidence)
    if ratio is None or interval is None:
        return replace(
            undecided,
            reasons=(
                Reason(
                    code="unmeasured",
                    message="no repetition has a value in both arms",
                    hint=RESUME,
                ),
            ),
        )
    undecided = replace(undecided, interval=interval)
    if len(log_ratios) < planned_pairs:
        message = f"{len(log_ratios)} of {planned_pairs} repetitions have a value in both arms"
        return replace(
            undecided,
            reasons=(Reason(code="legs-missing", message=message, hint=RESUME),),
        )

    # 3, 4  The binding number is the ratio of medians; the interval is that of the mean paired log ratio.
    threshold = floor - band.share
    low, high = math.exp(interval.low), math.exp(interval.high)
    span = f"ratio {shown(ratio)}, interval {shown(low)}–{shown(high)}, needed {shown(threshold)}"

    # 5  PASS by non-inferiority against δ = floor − band. FAIL when worse than the floor beyond doubt, and by more than
    #    the band. They cannot both hold: the ratio of medians is on one side of δ.
    if low >= threshold and ratio >= threshold:
        return replace(undecided, verdict=Verdict.PASS)
    if high < floor and ratio < threshold:
        message = (
            f"ratio {shown(ratio)}, needed {shown(threshold)}; "
            f"the interval {shown(low)}–{shown(high)} lies below the floor {shown(floor)}"
        )
        reason = Reason(
            code="below-floor",
            message=message,
            hint="worse by more than the band: compare the arms' step times at this concurrency",
        )
        return replace(undecided, verdict=Verdict.FAIL, reasons=(reason,))
    disagree = abs(math.log(ratio) - interval.mean) > AGREEMENT_IN_BANDS * band.share
    code = "estimates-disagree" if disagree else "interval-straddles"
    hint = "one repetition decides: add repetitions" if disagree else "add repetitions, or quieten the host"
    return replace(undecided, reasons=(Reason(code=code, message=span, hint=hint),))


def family(decisions: Sequence[Decision], floor: float) -> tuple[Decision, ...]:
    """6  Holm over the primary cells: a FAIL that many cells explain goes back to INCONCLUSIVE.

    p is that of "not below the floor"; where a look has only a part of α, p is raised by as much.
    """
    intervals = {k: decision.interval for k, decision in enumerate(decisions) if decision.interval is not None}
    p_of = dict(zip(intervals, adjusted([_p(interval, floor) for interval in intervals.values()]), strict=True))
    result = []
    for k, decision in enumerate(decisions):
        if decision.verdict is Verdict.FAIL and p_of[k] > FAMILY_ALPHA:
            message = f"below the floor by itself, but p = {p_of[k]:.3f} over {len(intervals)} primary cells"
            reason = Reason(code="multiplicity", message=message, hint="add repetitions")
            decision = replace(decision, verdict=Verdict.INCONCLUSIVE, reasons=(reason, *decision.reasons))
        result.append(decision)
    return tuple(result)


def _p(interval: Interval, floor: float) -> float:
    return interval.p_below(math.log(floor)) * (1 - CONFIDENCE) / (1 - interval.confidence)  # Holm caps it at 1


def tokens(found: Comparison, *, planned: int, findings: Sequence[Finding], finished: bool) -> Decision:
    """7  Greedy tokens at one concurrency: exact, or different only where the oracle itself was undecided.

    finished: whether the run came to the questions to the oracle, which are its last step.
    """
    if findings:
        return Decision(Verdict.VOID, reasons_of(findings))
    if found.diverged:
        limit = "its top 20" if found.wrong_nats is None else f"{found.wrong_nats:g} nats"
        message = f"{found.diverged} of {found.sequences} sequences differ where the oracle was decided (> {limit})"
        mixed = sum(one.foreign_index is not None for one in found.divergences)
        if mixed:
            message += f"; {mixed} go on with another request's ids"
        hint = "requests share state: look at slots and blocks" if mixed else "see divergences in report.json"
        return Decision(Verdict.FAIL, (Reason(code="tokens-diverged", message=message, hint=hint),))
    noisy = _noise(found)
    if noisy is not None and noisy.verdict is Verdict.FAIL:
        return noisy
    if found.unjudged:
        why = "" if found.unjudged_why is None else f": {found.unjudged_why}"
        asked = f"the oracle has no opinion{why}" if finished else "the run ended before the oracle was asked"
        message = f"{found.unjudged} of {found.sequences} sequences differ and {asked}"
        hint = "the oracle must answer prompt_logprobs requests" if finished else RESUME
        if found.unjudged_why == NOT_ASKED:
            hint = "give protocol.second_look_s more time"
        reason = Reason(code="tokens-unjudged", message=message, hint=hint)
        return Decision(Verdict.INCONCLUSIVE, (reason,))
    if noisy is not None:
        return noisy
    if found.sequences < planned or not planned:
        message = f"{found.sequences} of {planned} planned sequences could be compared"
        hint = "both arms must return token ids for every request" if finished else RESUME
        reason = Reason(code="tokens-unread", message=message, hint=hint)
        return Decision(Verdict.INCONCLUSIVE, (reason,))
    return Decision(Verdict.PASS)


def _noise(found: Comparison) -> Decision | None:
    """Sequences beyond the bound, judged together by how much noisier all are than the oracle's own; None: nothing
    against them."""
    if not found.undecided:
        return None
    limit = f"the bound of their prompt (at most {found.near_nats:g} nats)"
    beyond = f"{found.undecided} of {found.sequences} sequences differ by more than {limit}"
    if found.noise is None:
        lacking = "too few of the oracle's own have gaps to compare them with"
        hint = "the oracle's own answers must go back to it too: look at second_look_s and at its log"
        if found.wrong_nats is None:
            lacking = "some of the oracle's own ids are outside its own top 20"
            hint = "this oracle's one-shot and step-by-step answers differ too much to judge by"
        message = f"{beyond}, and {lacking}"
        return Decision(Verdict.INCONCLUSIVE, (Reason(code="oracle-undecided", message=message, hint=hint),))
    bulk, tail = found.noise.bulk, found.noise.tail
    judged = loud(found.noise, found.run_noise)
    if judged is Loud.NO:
        return None
    faulty = judged is Loud.YES
    worse = max((bulk, tail), key=lambda one: one.low if faulty else one.high)
    by = "mean" if worse is bulk else "largest"
    said = f"{shown(worse.value)} ({shown(worse.low)} to {shown(worse.high)}) times as noisy as the oracle's own"
    message = f"{beyond}, and all by their {by} gap are {said} {found.noise.own_sequences}"
    if faulty:
        hint = f"more than {FAULT:g} is no rounding: see divergences in report.json"
        return Decision(Verdict.FAIL, (Reason(code="tokens-noisy", message=message, hint=hint),))
    hint = f"up to {ALLOWED:.2f} is another correct rounding, above {FAULT:g} a fault; more sequences decide"
    return Decision(Verdict.INCONCLUSIVE, (Reason(code="oracle-undecided", message=message, hint=hint),))


def grid(cells: Sequence[Cell], token_cells: Sequence[TokenCell]) -> Verdict:
    """8  FAIL before VOID before INCONCLUSIVE before PASS, over primary cells and tokens.

    The claim is a conjunction. One valid refutation decides it whatever else is unknown; short of that, a void cell
    needs its cause mended before repeating helps; short of that, an undecided cell needs more repetitions.
    """
    verdicts = {c.verdict for c in cells if c.primary} | {c.verdict for c in token_cells}
    for verdict in (Verdict.FAIL, Verdict.VOID, Verdict.INCONCLUSIVE):
        if verdict in verdicts:
            return verdict
    return Verdict.PASS if verdicts else Verdict.INCONCLUSIVE
