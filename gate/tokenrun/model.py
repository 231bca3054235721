"""7 What a token run's report shows, as data; its report.json is this."""

from __future__ import annotations

from typing import Literal

from gate.observe.rows import Arm, Finding, Row, Verdict
from gate.report.model import ArmSummary, Divergence, Noise, OwnSpread, Reason


class KindCell(Row):
    """One kind of load at one concurrency, all seeds together."""

    kind: str
    """long or churn."""
    concurrency: int
    planned: int
    """Answers of each arm."""
    sequences: int
    exact: int
    near_tie: int
    undecided: int
    diverged: int
    unjudged: int
    uncompared: int
    max_margin_nats: float | None
    near_nats: float
    """Largest bound that was applied."""
    wrong_nats: float | None
    """Above it a gap is wrong; None: the oracle's own ids are outside its own top 20, and no figure is."""
    own: OwnSpread | None
    noise: Noise | None = None
    """Beside the oracle's own of this kind at all levels."""
    run_noise: Noise | None = None
    """Of this kind at all levels."""
    verdict: Verdict
    reasons: tuple[Reason, ...] = ()


class TieBreak(Row):
    """Greedy sampling of one arm by the log-probs of its own steps; decides nothing."""

    arm: Arm
    positions: int
    """0: it gave no log-probs."""
    ties: int
    """Exact ties that it met."""
    high: int
    """Of them, those it did not give to the lowest id."""
    not_greedy: int
    """Positions at which it took another token than its own most probable one."""


class TokenReport(Row):
    """One token run."""

    schema_version: Literal[1] = 1
    flow: Literal["tokens"] = "tokens"
    run_id: str
    plan_id: str
    recipe: str
    host: str
    started_at: str
    finished_at: str | None
    complete: bool
    binding: bool
    """Whether the whole protocol was kept; the verdict is the same either way."""
    not_binding_because: tuple[str, ...] = ()
    verdict: Verdict
    exit_code: int
    candidate: ArmSummary
    oracle: ArmSummary
    machine: dict[str, str]
    repeats: int
    seeds: int
    near_tie_nats: float
    """The floor of the bound, of the recipe."""
    cells: tuple[KindCell, ...]
    tie_breaks: tuple[TieBreak, ...] = ()
    divergences: tuple[Divergence, ...] = ()
    findings: tuple[Finding, ...] = ()
