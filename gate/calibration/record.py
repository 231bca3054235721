"""6 A band file: what a host's A/A history says about noise, and what it is valid for."""

from __future__ import annotations

from typing import Literal

from gate.observe.rows import Row
from gate.stats.band import Prior


class BandKey(Row):
    """Everything that moves noise. A band is used where all of it is equal."""

    host: str
    machine: dict[str, str]
    """Processor, cores, kernel, GPUs by name and UUID, driver, and the governor or the cards' limits; as
    observe/machine.py words them. A setting that is not among them is unknown."""
    oracle_kind: str
    oracle_version: str | None
    """As the server reports it; None before it has been asked."""
    oracle_argv: tuple[str, ...] | None
    """Its port written {port}; None for an attached URL."""
    oracle_env: dict[str, str]
    """Without PATH and the like (key.INDIFFERENT)."""
    oracle_checkpoint_digest: str | None
    oracle_source_sha256: str | None
    """Where our engine is the oracle: its sources."""
    workload: dict[str, int | float | str | None]
    """Without the seed."""
    gpu: bool
    residency: str


class BandGate(Row):
    """One A/A gate of the history."""

    run_id: str
    verdict: str
    """Of its grid, judged with the prior of all other gates."""


class BandCell(Row):
    """One axis at one concurrency, over the history."""

    axis: str
    concurrency: int
    primary: bool
    gates: int
    """With at least one pair and not void."""
    void: int
    """Gates whose cell was void, had but a bound or was not measured in full, left out."""
    pairs: int
    sd: float | None
    """s0 of one paired log ratio; None when the history knows no variance: such a cell keeps the assumed prior."""
    df: float | None
    robust: bool | None
    """False: the plain standard deviation stands in for a median of deviations that is 0."""
    between_gates_p: float | None
    """Small: gates differ by more than their own pairs do (stats/band.py)."""
    between_gates_sd: float | None
    """τ, by how much; 0 unless that is beyond doubt."""
    ratios: tuple[float, ...]
    """Ratio of medians of each gate; 1 but for noise."""
    verdicts: dict[str, int]
    """PASS, FAIL, INCONCLUSIVE, VOID over the gates, each judged with the prior of the others, before Holm."""
    modes: str | None = None
    """Where the legs fall in two groups, and how far apart."""

    def prior(self) -> Prior | None:
        if self.sd is None or self.df is None:
            return None
        p, sd = self.between_gates_p, self.between_gates_sd or 0.0
        return Prior(self.gates, self.pairs, self.sd, self.df, bool(self.robust), p, sd)


class BandRecord(Row):
    schema_version: Literal[1] = 1
    band_id: str
    """sha256 of all the rest as canonical JSON."""
    recipe: str
    key: BandKey
    gates: tuple[BandGate, ...]
    cells: tuple[BandCell, ...]

    def cell(self, axis: str, concurrency: int) -> BandCell | None:
        return next((c for c in self.cells if (c.axis, c.concurrency) == (axis, concurrency)), None)
