"""6 A server's opinion of ids that it generated itself -> its spread, how often it is undecided, how it breaks ties.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gate.observe.tokenrows import ForcedRow

EDGES_NATS = (0.0, 0.001, 0.01, 0.1, 0.25, 0.5, 1.0)
"""0 is an exact tie; 0.001 is beyond what the oracle's log-probs differ by from run to run (7e-6 were seen); 0.25 is
the floor of the bound, 0.5 its ceiling; most positions of a trained model lie above 1."""


@dataclass(frozen=True, slots=True)
class Own:
    """What teacher forcing says of sequences that the oracle generated itself."""

    sequences: int
    positions: int
    largest_nats: float | None
    """Largest gap of its own ids; None: nothing was asked, or no position had a figure."""
    outside_top: int
    """Positions at which its own id is not among its 20 most probable."""
    undecided: tuple[int, ...]
    """At how many positions its lead over the next token is at most each of EDGES_NATS; cumulative."""


@dataclass(frozen=True, slots=True)
class TieBreaks:
    """Greedy sampling by the log-probs of its own steps."""

    positions: int
    ties: int
    """Positions at which two tokens share the highest log-prob."""
    high: int
    """Of them, those that did not go to the lowest id."""
    not_greedy: int
    """Positions at which another token than the most probable was taken."""


def usable(row: ForcedRow) -> bool:
    """Every position has an opinion: a gap, or the word that it is outside the top."""
    count = len(row.token_ids)
    lists = (row.gaps_nats, row.outside_top, row.leads_nats, row.best_ids)
    if row.error is not None or any(len(one) != count for one in lists):
        return False
    return all((gap is None) == outside for gap, outside in zip(row.gaps_nats, row.outside_top, strict=True))


def own(rows: Iterable[ForcedRow]) -> Own:
    """rows: of the oracle's own ids; those without an opinion are left out."""
    good = [row for row in rows if usable(row)]
    gaps = [gap for row in good for gap in row.gaps_nats if gap is not None]
    leads = [lead for row in good for lead in row.leads_nats if lead is not None]
    return Own(
        sequences=len(good),
        positions=sum(len(row.token_ids) for row in good),
        largest_nats=max(gaps, default=None),
        outside_top=sum(sum(row.outside_top) for row in good),
        undecided=tuple(sum(lead <= edge for lead in leads) for edge in EDGES_NATS),
    )


def tie_breaks(rows: Iterable[ForcedRow]) -> TieBreaks:
    """rows: ids with the log-probs of the steps that chose them, never another server's opinion of them."""
    good = [row for row in rows if usable(row)]
    met = [
        (tied, given != best)
        for row in good
        for tied, given, best in zip(_tied(row), row.token_ids, row.best_ids, strict=True)
    ]
    return TieBreaks(
        positions=len(met),
        ties=sum(tied for tied, _ in met),
        high=sum(tied and other for tied, other in met),
        not_greedy=sum(gap is None or gap > 0.0 for row in good for gap in row.gaps_nats),
    )


def _tied(row: ForcedRow) -> Sequence[bool]:
    """Where two tokens share the highest log-prob and the given id is one of them."""
    return [lead == 0.0 and gap == 0.0 for lead, gap in zip(row.leads_nats, row.gaps_nats, strict=True)]
