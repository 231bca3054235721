"""0 Faults of who was measured and of whose the records are: what servers said, pins, plan, records that were mixed."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from gate.errors import UsageError
from gate.observe.rows import LegRow, RequestRow
from gate.observe.rundata import RunData
from gate.selftest.good_run import MS, Build

KINDS = frozenset({"said", "pins", "plan", "recipe", "twin", "shift", "lose-pins"})
STAMPS = ("sent_ns", "first_token_ns", "last_token_ns", "end_ns")
PLACE = ("arm", "concurrency", "repetition")


def break_it(run: RunData, fault: dict[str, Any]) -> RunData:
    """One [[fault]] of KINDS applied to a run."""
    on, changes = fault["on"], fault.get("set", {}) | dict.fromkeys(fault.get("unset", ()))
    if on == "said":
        return _said(run, fault["arm"], changes)
    if on == "pins":
        return _pins(run, fault.get("when"), changes)
    if on == "lose-pins":
        return dataclasses.replace(run, pins=tuple(look for look in run.pins if look.when != fault["when"]))
    if on == "plan":
        return dataclasses.replace(run, plan=run.plan.model_copy(update=changes))
    if on == "recipe":
        recipe, table = run.plan.recipe, getattr(run.plan.recipe, fault["table"])
        changed = recipe.model_copy(update={fault["table"]: table.model_copy(update=changes)})
        return dataclasses.replace(run, plan=run.plan.model_copy(update={"recipe": changed}))
    if on == "twin":
        return _twin(run, _leg(run, fault), _leg(run, fault["of"]))
    return _shift(run, _leg(run, fault), fault["index"], int(fault["ms"] * MS))


def _said(run: RunData, arm: Any, changes: dict[str, Any]) -> RunData:
    """Entries of Identity.extra; `manifest.<name>` is an entry of the engine's manifest."""
    extra = dict(next(one for one in run.identities if one.arm == arm).extra)
    for key, value in changes.items():
        if key.startswith("manifest."):
            whole = json.loads(extra["manifest"]) | {key.removeprefix("manifest."): value}
            extra["manifest"] = json.dumps({name: entry for name, entry in whole.items() if entry is not None})
        elif value is None:
            del extra[key]
        else:
            extra[key] = value
    return Build.alter_identity(run, arm, extra=extra)


def _pins(run: RunData, when: str | None, changes: dict[str, Any]) -> RunData:
    """Tables are merged; without `when` both looks saw it."""
    looks = []
    for look in run.pins:
        merged = {
            key: {**getattr(look, key), **value} if isinstance(value, dict) else tuple(value)
            for key, value in changes.items()
        }
        looks.append(look.model_copy(update=merged) if when in (None, look.when) else look)
    return dataclasses.replace(run, pins=tuple(looks))


def _leg(run: RunData, place: dict[str, Any]) -> LegRow:
    found = [leg for leg in run.legs if all(getattr(leg, key) == place[key] for key in PLACE)]
    if len(found) != 1:
        raise UsageError(f"{len(found)} legs match {place}", expected="one: arm, concurrency and repetition")
    return found[0]


def _twin(run: RunData, leg: LegRow, of: LegRow) -> RunData:
    """The leg's records become those of another leg once more."""
    theirs = {row.index: row for row in run.requests if row.leg_id == of.leg_id}

    def copied(row: RequestRow) -> RequestRow:
        keys = (*STAMPS, "token_times_ns")
        return row.model_copy(update={key: getattr(theirs[row.index], key) for key in keys})

    requests = tuple(copied(row) if row.leg_id == leg.leg_id else row for row in run.requests)
    run = Build.alter_leg(run, leg.leg_id, start_ns=of.start_ns, end_ns=of.end_ns)
    return dataclasses.replace(run, requests=requests)


def _shift(run: RunData, leg: LegRow, index: int, ns: int) -> RunData:
    """One request as a whole sent later or earlier; the leg lasts as long as its requests."""
    row = next(r for r in run.requests if (r.leg_id, r.index) == (leg.leg_id, index))
    moved = {key: getattr(row, key) + ns for key in STAMPS if getattr(row, key) is not None}
    run = Build.alter_request(
        run, leg.leg_id, index, **moved, token_times_ns=tuple(stamp + ns for stamp in row.token_times_ns)
    )
    own = [r for r in run.requests if r.leg_id == leg.leg_id]
    start, end = min(r.sent_ns for r in own), max(r.end_ns or 0 for r in own)
    if (start, end) == (leg.start_ns, leg.end_ns):
        return run
    return Build.alter_leg(run, leg.leg_id, start_ns=start, end_ns=end)
