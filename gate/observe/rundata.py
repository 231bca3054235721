"""RunData: everything one run left behind, in memory; what gate/judge.py takes and gate/observe/store.py reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from gate.calibration.record import BandRecord
from gate.compare.record import Baseline
from gate.observe.rows import Finding, Identity, LegRow, MarginRow, Pins, RequestRow, StartRow, TelemetryRow
from gate.observe.tokenrows import ForcedRow, SequenceRow
from gate.plan import Plan
from gate.report.model import ClientCost


@dataclass(frozen=True, slots=True)
class RunData:
    """Raw records only: nothing here was computed from anything else here.

    An interrupted run is a RunData with fewer legs than its plan and `finished_at` None.
    """

    plan: Plan
    run_id: str
    host: str
    started_at: str
    """ISO 8601 UTC."""
    finished_at: str | None = None
    """None until the last leg, the identification and the margins are done."""
    unsealed: bool = False
    """Finished by a version whose marker has no seal of its own: nobody can tell if its records are as measured."""
    ended: str | None = None
    """Why it ended early, as it said itself; None in a finished run, and in one that was killed."""
    legs: tuple[LegRow, ...] = ()
    """In the order they ran."""
    requests: tuple[RequestRow, ...] = ()
    """Timed requests only; warm-up leaves no rows."""
    telemetry: tuple[TelemetryRow, ...] = ()
    identities: tuple[Identity, ...] = ()
    """Every distinct identity seen, both arms; legs point to them by digest."""
    margins: tuple[MarginRow, ...] = ()
    """The oracle's margins at first divergences: runs from before whole sequences were asked for have them alone."""
    repeats: tuple[SequenceRow, ...] = ()
    """The oracle's untimed runs of prompts of timed legs (gate/margins.py)."""
    forced: tuple[ForcedRow, ...] = ()
    """The oracle's opinion of both arms' ids, position by position."""
    starts: tuple[StartRow, ...] = ()
    """In order; empty in a run that did not record them."""
    client: ClientCost | None = None
    machine: dict[str, str] = field(default_factory=dict)
    """What observe/machine.py read, as text: cpu, gpu, driver, kernel, commit …"""
    pins: tuple[Pins, ...] = ()
    """What the checkpoints and the oracle's packages came to, before and after the legs."""
    preflight: tuple[Finding, ...] = ()
    """What preflight found but did not refuse to start for."""
    band: BandRecord | None = None
    """The host's band that was nearest when the run began, valid for it or not."""
    baseline: Baseline | None = None
    """The host's last accepted grid of the recipe when the run began."""
