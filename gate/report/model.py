"""Everything a report shows, as data. report.json is this, and its JSON schema is published from it."""

from __future__ import annotations

from typing import Literal

from gate.observe.rows import Finding, Row, Verdict

Direction = Literal["higher", "lower"]

SCHEMA_VERSION = 1


class Reason(Row):
    code: str
    message: str
    hint: str
    leg_id: str | None = None
    """The leg it was found in; None: no single one."""
    beyond: float | None = None
    """Found over allowed, as in Finding: the largest of several is the one to show."""


class Cell(Row):
    """One axis at one concurrency: both arms' medians, the ratio, the verdict."""

    axis: str
    """output_throughput, total_throughput, request_throughput, ttft_median_ms, tpot_mean_ms …"""
    concurrency: int
    unit: str
    direction: Direction
    """Which way is better."""
    primary: bool
    """Only primary cells decide the grid's verdict."""
    candidate_values: tuple[float | None, ...]
    oracle_values: tuple[float | None, ...]
    """One per repetition, in order."""
    candidate_median: float | None
    oracle_median: float | None
    ratio: float | None
    """Direction-normalised: ≥ 1 means the candidate is at least as good. None when VOID or unmeasured."""
    ratio_low: float | None
    ratio_high: float | None
    """Confidence interval of the ratio."""
    band: float
    """The contract's slack below the floor, as a share (0.02 is 2 %)."""
    floor: float
    verdict: Verdict
    reasons: tuple[Reason, ...] = ()
    prior: Literal["assumed", "calibrated"] = "assumed"
    prior_sd: float | None = None
    """Of one paired log ratio of equal arms on this host."""
    prior_df: float | None = None
    """How much it weighs, in degrees of freedom; None in a report of an earlier version."""


class TokenCell(Row):
    """Greedy tokens of both arms at one concurrency."""

    concurrency: int
    sequences: int
    exact: int
    """Sequences with all tokens equal in every repetition."""
    near_tie: int
    """Diverged where the oracle itself was undecided (margin within the bound)."""
    diverged: int
    """Diverged where the oracle was decided."""
    unjudged: int
    """Diverged, and no margin could be had."""
    max_margin_nats: float | None
    bound_nats: float
    verdict: Verdict
    reasons: tuple[Reason, ...] = ()


class Divergence(Row):
    """The first difference of one sequence."""

    concurrency: int
    repetition: int
    index: int
    position: int
    candidate_id: int
    oracle_id: int
    margin_nats: float | None
    """Oracle's log-prob of its own choice minus that of the candidate's, on the shared prefix."""


class ArmSummary(Row):
    name: str
    """engine, vllm, or the command or URL."""
    version: str | None
    argv: tuple[str, ...] | None
    url: str
    checkpoint: str
    checkpoint_digest: str | None
    kv_cache_dtype: str | None


class ClientCost(Row):
    """The client's own cost, measured against a loopback server before the first leg (client/calibrate.py)."""

    cpu_us_per_event: float | None
    skew_p50_ms: float | None
    skew_p90_ms: float | None
    streams: int | None
    events: int | None


class BandSummary(Row):
    """The host's A/A history that the cells were judged with."""

    band_id: str
    gates: int


class Report(Row):
    """One run."""

    schema_version: Literal[1] = 1
    run_id: str
    plan_id: str
    recipe: str
    host: str
    started_at: str
    finished_at: str | None
    complete: bool
    """False when legs are missing: interrupted, or an arm died."""
    binding: bool
    not_binding_because: tuple[str, ...] = ()
    verdict: Verdict
    exit_code: int
    candidate: ArmSummary
    oracle: ArmSummary
    machine: dict[str, str]
    client: ClientCost | None = None
    concurrencies: tuple[int, ...]
    repetitions: int
    order: tuple[str, ...]
    """leg ids as run."""
    cells: tuple[Cell, ...]
    band: BandSummary | None = None
    """None: every prior is assumed."""
    tokens: tuple[TokenCell, ...] = ()
    divergences: tuple[Divergence, ...] = ()
    findings: tuple[Finding, ...] = ()
    counts: dict[str, int]
    """PASS, FAIL, INCONCLUSIVE, VOID over all planned cells."""
    notes: tuple[str, ...] = ()
