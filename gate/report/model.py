"""Everything a report shows, as data. report.json is this, and its JSON schema is published from it."""

from __future__ import annotations

from typing import Literal

from gate.compare.record import Regression
from gate.observe.rows import Finding, Row, StartRow, Verdict

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
    at_least: float | None = None
    """In place of the ratio, where findings say that figures moved and the arms lie apart all the same: the bound that
    decided (stats/apart.py)."""
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
    looks: int = 1
    """2: decided after the extra blocks; the values are those of the repetitions that it rests on."""
    order_effect: float | None = None
    """What running first in a repetition adds to an arm, as a share; above 0 the first looks better. None if VOID."""
    cycles_ratio: float | None = None
    """The ratio at one SM clock (stats/cycles.py); None without a GPU's clock in every leg, of memory, or if VOID."""
    notes: tuple[str, ...] = ()
    """What does not decide: an arm whose legs fall in two groups."""

    @property
    def bounded(self) -> bool:
        """Decided by a bound: there is a verdict, and no figure to believe."""
        return self.at_least is not None


class OwnSpread(Row):
    """The oracle judged by its own measure, and how often it leaves a position undecided."""

    repeated: int
    """Prompts that it ran more than once, untimed, at the same concurrency."""
    agreeing: int
    """Of them, those in which all its runs are equal."""
    sequences: int
    """Of its own, sent back to it."""
    positions: int
    largest_nats: float | None
    """Largest gap of its own ids: its one-shot answer differs from its step-by-step one by so much."""
    outside_top: int
    """Its own ids that are not among its 20 most probable."""
    undecided: tuple[int, ...] = ()
    """Positions at which its lead over the next token is at most 0, 0.001, 0.01, 0.1, 0.25, 0.5, 1 nats; cumulative."""


class Interval(Row):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


class Noise(Row):
    """The candidate's gaps beside the oracle's own: 1 is equally noisy (gate/tokens/noise.py)."""

    candidate_sequences: int
    own_sequences: int
    """Of the whole run: all concurrencies together."""
    bulk: Interval
    """By the mean gap."""
    tail: Interval
    """By the largest gap of a sequence."""


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
    """Largest gap of the sequences that differ, over all their positions."""
    bound_nats: float
    """near_tie_nats of the recipe: the floor of the bound."""
    verdict: Verdict
    reasons: tuple[Reason, ...] = ()
    undecided: int = 0
    """Beyond the bound, but not wrong by themselves: judged together, by the noise."""
    near_nats: float | None = None
    """The largest bound that a prompt had; above bound_nats only of those on which the oracle disagrees with itself."""
    own: OwnSpread | None = None
    """What the oracle says of its own ids; None in a run that did not ask."""
    noise: Noise | None = None
    """None: there is nothing to compare, or the report is of an earlier version."""
    run_noise: Noise | None = None
    """The same of all levels together."""


class Divergence(Row):
    """The first difference of one sequence, and what the whole sequence is."""

    concurrency: int
    repetition: int
    index: int
    position: int
    candidate_id: int
    oracle_id: int
    margin_nats: float | None
    """Oracle's log-prob of its own choice minus that of the candidate's, on the shared prefix."""
    kind: str = "leg"
    """leg, long or churn: which prompts."""
    judged: str = ""
    """near tie, undecided, diverged or unjudged; empty in a report made before sequences were judged one by one."""
    worst_nats: float | None = None
    """Largest gap of any position, each on the candidate's own prefix; None: not asked, or outside the top."""
    wrong_position: int | None = None
    """The first position that is wrong by itself."""
    wrong_positions: int = 0
    """How many are."""
    outside_top: bool = False
    """Some id of it is not among the oracle's 20 most probable."""
    foreign_index: int | None = None
    """From the wrong position on, these are the ids of this other request."""


class Residency(Row):
    """What an arm holds and runs, by its own word; None: it does not say. No verdict rests on it."""

    shipped_bytes: int | None = None
    """Of the weights in the checkpoint."""
    resident_bytes: int | None = None
    """Of the weights in memory; of vLLM what its log says that loading took."""
    copy_bytes: int | None = None
    """Dequantised copies beside them."""
    widened: tuple[str, ...] | None = None
    """Modules held in a wider dtype than shipped: a finding of its own (gate/checks/weights_widened.py)."""
    kernels: tuple[str, ...] | None = None
    """Those that it called, or that were chosen for this model."""
    compiled: tuple[str, ...] | None = None
    """All that the loaded library holds, whether this model takes them or not."""
    reference_ops: tuple[str, ...] | None = None
    """Ops that ran on their plain reference."""


class Build(Row):
    """Which engine answered, beyond its version, by its own word; None: it does not say."""

    source_sha256: str | None = None
    """Of the engine's sources."""
    kernel_source_sha256: str | None = None
    """Of what its kernels were compiled from, and how; read from the loaded library."""
    kernel_arch: str | None = None
    """Such as sm_90a."""


class ArmSummary(Row):
    name: str
    """engine, vllm, or the command or URL."""
    version: str | None
    argv: tuple[str, ...] | None
    url: str
    checkpoint: str
    checkpoint_digest: str | None
    kv_cache_dtype: str | None
    build: Build = Build()
    residency: Residency | None = None
    kv_capacity_tokens: int | None = None
    """Of its KV cache, as it says."""
    kv_capacity_is_bound: bool = False
    """Blocks × block size: recurrent states take some of them."""
    kv_cache_bytes: int | None = None
    starts: tuple[StartRow, ...] = ()
    """Each start of its server; empty where the run did not record them, or the server was attached."""


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
    looks: int = 1
    """2 where extra blocks were declared; each cell says how many it took."""
    tokens: tuple[TokenCell, ...] = ()
    divergences: tuple[Divergence, ...] = ()
    findings: tuple[Finding, ...] = ()
    counts: dict[str, int]
    """PASS, FAIL, INCONCLUSIVE, VOID over all planned cells."""
    notes: tuple[str, ...] = ()
    regression: Regression | None = None
    """Absolute figures beside the host's last accepted grid; None where there was none when the run began."""
