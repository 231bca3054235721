"""Evidence: a run's raw records, indexed the way checks and the judge ask for them. Pure; reads nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gate.errors import StorageError
from gate.metrics import Axis, axes_for, server_axes_for
from gate.observe.rows import ARMS, Arm, Identity, LegRow, RequestRow
from gate.observe.rundata import RunData
from gate.plan import ArmPlan, Plan, PlannedLeg


@dataclass(frozen=True, slots=True)
class Leg:
    """One leg that ran: its record, its plan, its requests by prompt index."""

    row: LegRow
    planned: PlannedLeg
    requests: tuple[RequestRow, ...]

    @property
    def duration_s(self) -> float:
        return (self.row.end_ns - self.row.start_ns) / 1e9

    @property
    def name(self) -> str:
        return self.row.leg_id


@dataclass(frozen=True, slots=True)
class Evidence:
    run: RunData
    legs: tuple[Leg, ...]
    """In the order they ran."""
    concurrencies: tuple[int, ...]
    """Of the plan, ascending."""
    _values: dict[tuple[str, int, Arm], tuple[float | None, ...]] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, run: RunData) -> Evidence:
        """Index a run.

        Raises:
            StorageError: the records name a leg that the plan does not, or one leg twice.
        """
        planned = {leg.leg_id: leg for leg in run.plan.all_legs}
        seen: set[str] = set()
        for leg_id in [row.leg_id for row in run.legs]:
            if leg_id not in planned or leg_id in seen:
                what = "twice" if leg_id in seen else "that its plan does not know"
                raise StorageError(
                    f"run {run.run_id} holds leg {leg_id} {what}",
                    expected=f"the {len(planned)} legs of plan {run.plan.plan_id}, once each",
                    hint="the records were mixed with another run's: measure again",
                )
            seen.add(leg_id)
        records: tuple[LegRow | RequestRow, ...] = (*run.legs, *run.requests)
        for row in records:
            leg = planned.get(row.leg_id)
            if leg is None or (row.arm, row.concurrency, row.repetition) != (leg.arm, leg.concurrency, leg.repetition):
                said = f"{row.arm} c{row.concurrency} r{row.repetition}"
                raise StorageError(
                    f"run {run.run_id} holds a record of {said} as {row.leg_id}",
                    expected="records of the plan's own legs",
                    hint="the records were mixed or edited: measure again",
                )
        requests: dict[str, list[RequestRow]] = defaultdict(list)
        for request in run.requests:
            requests[request.leg_id].append(request)
        legs = tuple(
            Leg(row, planned[row.leg_id], tuple(sorted(requests[row.leg_id], key=lambda r: r.index)))
            for row in sorted(run.legs, key=lambda row: (row.started_at, row.order))
        )
        return cls(run, legs, tuple(sorted({leg.concurrency for leg in run.plan.legs})))

    @property
    def plan(self) -> Plan:
        return self.run.plan

    @property
    def repetitions(self) -> int:
        """Planned repetitions of each arm at each concurrency, without extra blocks."""
        return 1 + max((leg.repetition for leg in self.plan.legs), default=-1)

    def repetitions_at(self, concurrency: int) -> int:
        """With the extra blocks where they were begun."""
        if not self.extended(concurrency):
            return self.repetitions
        return 1 + max(leg.repetition for leg in self.plan.all_legs)

    def extended(self, concurrency: int) -> bool:
        """Whether a leg of an extra block ran here."""
        return any(leg.row.repetition >= self.repetitions for leg in self.at(concurrency))

    @property
    def host_busy(self) -> bool:
        """Whether preflight found other work on this host."""
        return any(finding.code == "host-busy" for finding in self.run.preflight)

    @property
    def resumed(self) -> bool:
        """Whether legs were measured before and after an interruption."""
        return any(finding.code == "resumed" for finding in self.run.preflight)

    @property
    def missing(self) -> tuple[PlannedLeg, ...]:
        """Planned legs without a record; those of extra blocks where one of them ran."""
        ran = {leg.name for leg in self.legs}
        wanted = (*self.plan.legs, *(leg for leg in self.plan.extra_legs if self.extended(leg.concurrency)))
        return tuple(leg for leg in wanted if leg.leg_id not in ran)

    def of_arm(self, arm: Arm) -> tuple[Leg, ...]:
        return tuple(leg for leg in self.legs if leg.row.arm == arm)

    def at(self, concurrency: int, arm: Arm | None = None) -> tuple[Leg, ...]:
        return tuple(leg for leg in self.legs if leg.row.concurrency == concurrency and arm in (None, leg.row.arm))

    def pairs(self, concurrency: int) -> tuple[tuple[Leg, Leg], ...]:
        """(candidate's leg, oracle's leg) of each repetition that both arms ran."""
        by_arm = {arm: {leg.row.repetition: leg for leg in self.at(concurrency, arm)} for arm in ARMS}
        common = sorted(by_arm["candidate"].keys() & by_arm["oracle"].keys())
        return tuple((by_arm["candidate"][r], by_arm["oracle"][r]) for r in common)

    def arm_plan(self, arm: Arm) -> ArmPlan:
        return self.plan.arm(arm)

    def identity(self, arm: Arm) -> Identity | None:
        """What the arm first said of itself: before its first leg, or as soon as it answered."""
        recorded = [identity for identity in self.run.identities if identity.arm == arm]
        legs = self.of_arm(arm)
        at_first = [identity for identity in recorded if legs and identity.digest == legs[0].row.identity_before]
        return next(iter([*at_first, *recorded]), None)

    def values(self, axis: Axis, concurrency: int, arm: Arm) -> tuple[float | None, ...]:
        """The axis's value of each repetition, extra ones last; None where the leg is missing or has no value."""
        key = (axis.name, concurrency, arm)
        if key not in self._values:
            source = self._source(axis, concurrency)
            by_repetition = {
                leg.row.repetition: axis.value(leg.requests) if source is None else self._of_server(axis, source, leg)
                for leg in self.at(concurrency, arm)
            }
            self._values[key] = tuple(by_repetition.get(r) for r in range(self.repetitions_at(concurrency)))
        return self._values[key]

    def axes(self, concurrency: int) -> tuple[Axis, ...]:
        """The axes to report at a concurrency, those of the requests first."""
        primary = self.plan.recipe.protocol.primary
        rows = [leg.row for leg in self.legs]
        return (*axes_for(self.requests_per_leg(concurrency), primary), *server_axes_for(rows, primary))

    def _of_server(self, axis: Axis, source: Callable[[LegRow], float | None], leg: Leg) -> float | None:
        """A peak is that of the leg's server over the repetition: a warm one keeps what an earlier leg took, and
        which leg was the earlier one is the order's doing.
        """
        own = source(leg.row)
        if own is None or not axis.peak:
            return own
        rows = [other.row for other in self.legs if other.row.arm == leg.row.arm]
        same = [r for r in rows if (r.repetition, r.server_start_id) == (leg.row.repetition, leg.row.server_start_id)]
        return max(value for row in same if (value := source(row)) is not None)

    def _source(self, axis: Axis, concurrency: int) -> Callable[[LegRow], float | None] | None:
        """The source that most legs of both arms have, the first of equals: two are never set against each other.

        One that lacks legs is taken too, so that the arm which has a figure shows it beside the one that has none.
        """
        rows = [leg.row for leg in self.at(concurrency)]
        return max(axis.sources, key=lambda source: sum(source(row) is not None for row in rows), default=None)

    def requests_per_leg(self, concurrency: int) -> int:
        return min((leg.requests for leg in self.plan.legs if leg.concurrency == concurrency), default=0)


def first(requests: Sequence[RequestRow]) -> str:
    """`#3` or `#3 and 4 more`: which requests a message is about."""
    more = f" and {len(requests) - 1} more" if len(requests) > 1 else ""
    return f"#{requests[0].index}{more}"
