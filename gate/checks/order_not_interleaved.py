"""The arms did not take turns.

What it does
    For each concurrency whose legs all ran: voids it when the mean position of the candidate's legs differs from that
    of the oracle's by more than palindromic blocks (ABBA, ABBAAB) allow.
Why
    A box warms up and clocks drift. With a drift of 0.2 % per leg, three legs of one arm followed by three of the
    other give a false verdict in 20 to 60 runs of 100 under every test; ABBA cancels it. Measuring again inside the
    same block confirms the block, not the difference.
Deciding numbers
    |mean position of A − mean position of B| among the concurrency's legs, at most 1/n for n repetitions (what
    ABBAAB leaves; n = 1 cannot do better than 1).
What to do
    Let the gate plan the order; do not sort or re-run legs by arm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gate.checks.evidence import Evidence
from gate.observe.rows import Arm, Finding

CODE = "order-not-interleaved"
TIMING_ONLY = True
CONSEQUENCE = False
HINT = "let the gate plan the order; do not re-run legs by arm"


def imbalance(order: Sequence[Arm]) -> float:
    """Difference of the arms' mean positions, in legs; both must occur."""
    positions = {arm: [k for k, found in enumerate(order) if found == arm] for arm in set(order)}
    means = [sum(found) / len(found) for found in positions.values()]
    return abs(means[0] - means[1])


def check(evidence: Evidence) -> Iterator[Finding]:
    missing = {leg.concurrency for leg in evidence.missing}
    for concurrency in evidence.concurrencies:
        order = [leg.row.arm for leg in evidence.at(concurrency)]
        if concurrency in missing or len(set(order)) < 2:
            continue
        allowed = 2 / len(order)
        found = imbalance(order)
        if found > allowed + 1e-9:
            letters = "".join("A" if arm == order[0] else "B" for arm in order)
            message = (
                f"c{concurrency} ran {letters}: the arms' mean positions differ by {found:.2f} legs; "
                f"expected at most {allowed:.2f}"
            )
            yield Finding(code=CODE, message=message, hint=HINT, concurrency=concurrency)
