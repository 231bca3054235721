"""7 The records of a comparison; frozen, kept in report.json and baseline.json."""

from __future__ import annotations

from typing import Literal

from gate.observe.rows import Row

Direction = Literal["higher", "lower"]
Outcome = Literal["none", "loss", "host-moved", "undecided", "void"]
"""none: no loss beyond the band. host-moved: the candidate lost, and so did the oracle. void: nothing to compare."""


class Figures(Row):
    """Both arms on one axis at one concurrency: one value a repetition; none where the cell was VOID or had a bound."""

    axis: str
    concurrency: int
    unit: str
    direction: Direction
    candidate: tuple[float | None, ...]
    oracle: tuple[float | None, ...]


class Change(Row):
    """now over then, direction-normalised: 1 or more means at least as good as before."""

    ratio: float
    low: float
    high: float
    """95 % interval of the mean over paired repetitions."""


class Moved(Row):
    """One cell in two grids."""

    axis: str
    concurrency: int
    unit: str
    direction: Direction
    candidate_then: float | None
    candidate_now: float | None
    oracle_then: float | None
    oracle_now: float | None
    """Medians over the legs."""
    ratio_then: float | None
    ratio_now: float | None
    candidate: Change | None
    oracle: Change | None
    relative: Change | None
    """Of the ratio: what is left when the oracle's own change is taken out."""
    band: float
    """The slack, as a share."""
    verdict: Outcome


class Baseline(Row):
    """baseline.json: the last accepted grid of this host when the run began, as far as it is compared with."""

    schema_version: Literal[1] = 1
    run_id: str
    started_at: str
    binding: bool
    candidate: str
    oracle: str
    """Names and versions."""
    differs: tuple[str, ...] = ()
    """In what that run was another than this one, as far as a plan and a machine tell."""
    cells: tuple[Figures, ...]
    """Primary ones."""


class Regression(Row):
    """A run's primary cells beside its baseline's."""

    run_id: str
    """The baseline's."""
    started_at: str
    binding: bool
    candidate: str
    oracle: str
    differs: tuple[str, ...] = ()
    cells: tuple[Moved, ...]
    verdict: Outcome


class Difference(Row):
    """One thing that two runs do not have in common."""

    what: str
    then: str
    now: str
    weakens: bool
    """Whether figures are not strictly comparable because of it, so that the comparison is only indicative."""


class Side(Row):
    """One of the two runs."""

    run_id: str
    host: str
    started_at: str
    candidate: str
    oracle: str
    verdict: str
    binding: bool


class Comparison(Row):
    """`gate compare --json`."""

    schema_version: Literal[1] = 1
    recipe: str
    then: Side
    now: Side
    same_machine: bool
    """False: only ratios are judged."""
    binding: bool
    indicative_because: tuple[str, ...]
    differences: tuple[Difference, ...]
    cells: tuple[Moved, ...]
    not_in_both: tuple[str, ...] = ()
    """Cells that only one of the runs has."""
    verdict: Outcome
    exit_code: int
