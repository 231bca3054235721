"""One first divergence -> near tie, diverged or unjudged, by the oracle's margin there: what runs recorded before
whole sequences were sent back to the oracle, and are still judged by.

    margin = log p(oracle's id) − log p(candidate's id)        nats, by the oracle, on prompt and common output

Equal log-probs (margin 0) are an exact tie: either id is right. A negative margin means that the oracle, asked
again on the whole prefix, prefers the candidate's id: its one-shot and its incremental decode disagree, and that
is not the candidate's doing.
"""

from __future__ import annotations

import enum

from gate.observe.rows import MarginRow


class Kind(enum.StrEnum):
    """What a sequence that differs from the oracle's is."""

    NEAR_TIE = "near tie"
    UNDECIDED = "undecided"
    DIVERGED = "diverged"
    UNJUDGED = "unjudged"


def classify(margin: MarginRow | None, bound_nats: float) -> Kind:
    """None, or a margin the oracle did not give, leaves the divergence unjudged; outside its top it is decided."""
    if margin is None:
        return Kind.UNJUDGED
    if margin.outside_top:
        return Kind.DIVERGED
    if margin.margin_nats is None:
        return Kind.UNJUDGED
    return Kind.NEAR_TIE if margin.margin_nats <= bound_nats else Kind.DIVERGED
