"""6 A run and the band in its folder -> the noise prior of each cell, or why the band does not fit. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gate.calibration import key as keys
from gate.calibration.record import BandRecord
from gate.checks.evidence import Evidence
from gate.stats import band as bands
from gate.units import counted

MOST_SAID = 3
"""Differences in one sentence."""


@dataclass(frozen=True, slots=True)
class Noise:
    """What a run knows of its host's noise."""

    share: float
    """The contract's slack, whatever the host does."""
    record: BandRecord | None
    differences: tuple[str, ...]
    """In what the record is another's; empty where it is valid."""
    unknown: tuple[str, ...] = ()
    """Settings that the run or the record does not know; they do not make it another's."""

    @property
    def valid(self) -> BandRecord | None:
        return None if self.differences else self.record

    def band(self, axis: str, concurrency: int) -> bands.Band:
        """Calibrated where the history has this cell, else assumed."""
        cell = self.valid.cell(axis, concurrency) if self.valid else None
        prior = cell.prior() if cell else None
        return bands.assumed(self.share) if prior is None else bands.calibrated(self.share, prior)

    def notes(self) -> Iterator[str]:
        """What a reader of a valid band has to know, one sentence each."""
        if self.valid and self.unknown:
            yield f"band {self.valid.band_id[:12]} may be of other settings: {'; '.join(self.unknown)}"

    def missing(self, recipe: str, primary: tuple[str, ...], concurrencies: tuple[int, ...]) -> Iterator[str]:
        """What keeps it from binding, one sentence each."""
        if self.record is None:
            yield f"the noise prior is assumed for want of an A/A history; gate calibrate --recipe {recipe} records one"
            return
        name = f"band {self.record.band_id[:12]}"
        if self.differences:
            told = "; ".join(self.differences[:MOST_SAID])
            more = f"; {len(self.differences) - MOST_SAID} more" if len(self.differences) > MOST_SAID else ""
            yield f"the noise prior is assumed: {name} is not of this run: {told}{more}"
            return
        wanted = [(axis, concurrency) for concurrency in concurrencies for axis in primary]
        for axis, concurrency in wanted:
            cell, known = self.record.cell(axis, concurrency), f"{name} knows {axis} at c{concurrency}"
            if cell is None or cell.prior() is None:
                yield f"the noise prior of {axis} at c{concurrency} is assumed: {name} does not know it"
            elif cell.gates < bands.MIN_GATES:
                yield f"{known} from {counted(cell.gates, 'gate')}, fewer than {bands.MIN_GATES}"
            elif cell.pairs < bands.MIN_PAIRS:
                yield f"{known} from {counted(cell.pairs, 'pair')}, fewer than {bands.MIN_PAIRS}"


def noise(evidence: Evidence) -> Noise:
    run = evidence.run
    share = run.plan.recipe.protocol.band
    if run.band is None:
        return Noise(share, None, ())
    identity = evidence.identity("oracle")
    key = keys.key_of(run.plan, run.host, run.machine, None if identity is None else identity.version)
    return Noise(share, run.band, keys.differences(run.band.key, key), keys.unknown(run.band.key, key))
