"""0 Faults of tokens: the oracle's untimed runs of a prompt, and its opinion of either arm's ids."""

from __future__ import annotations

import dataclasses
from typing import Any

from gate.observe.rows import RequestRow
from gate.observe.rundata import RunData
from gate.observe.tokenrows import ForcedRow, Place, SequenceRow

KINDS = frozenset({"opinion", "repeat"})
DECIDED_NATS = 2.0
"""The oracle's lead at every position that a fault does not name."""


def break_it(run: RunData, fault: dict[str, Any]) -> RunData:
    """One [[fault]] of KINDS applied to a run."""
    place = Place(
        kind="leg", concurrency=fault["concurrency"], repetition=fault["repetition"], index=fault.get("index", 0)
    )
    if fault["on"] == "repeat":
        return dataclasses.replace(run, repeats=(*run.repeats, _repeat(run, place, fault)))
    return dataclasses.replace(run, forced=(*run.forced, _opinion(run, place, fault)))


def _repeat(run: RunData, place: Place, fault: dict[str, Any]) -> SequenceRow:
    """The oracle once more: the same ids unless `token_ids` says otherwise."""
    timed = _request(run, place, "oracle")
    return SequenceRow(
        **place.model_dump(),
        arm="oracle",
        take=fault.get("take", 1),
        prompt_sha256=timed.prompt_sha256,
        output_tokens=timed.expected_output_tokens,
        token_ids=tuple(fault.get("token_ids", timed.token_ids or ())),
    )


def _opinion(run: RunData, place: Place, fault: dict[str, Any]) -> ForcedRow:
    """Of the arm's answer, or of `token_ids`: its own choice everywhere but at `gaps` (by position) and `outside`."""
    ids = tuple(fault.get("token_ids", _request(run, place, fault["arm"]).token_ids or ()))
    if "error" in fault:
        return ForcedRow(**place.model_dump(), arm=fault["arm"], token_ids=ids, error=fault["error"])
    outside = set(fault.get("outside", ()))
    gaps = {int(at): float(nats) for at, nats in fault.get("gaps", {}).items()}
    whole = range(fault.get("positions", len(ids)))
    return ForcedRow(
        **place.model_dump(),
        arm=fault["arm"],
        token_ids=ids,
        gaps_nats=tuple(None if at in outside else gaps.get(at, 0.0) for at in whole),
        outside_top=tuple(at in outside for at in whole),
        leads_nats=tuple(gaps.get(at, DECIDED_NATS) for at in whole),
        best_ids=tuple(ids[at] for at in whole),
    )


def _request(run: RunData, place: Place, arm: str) -> RequestRow:
    where = (arm, place.concurrency, place.repetition, place.index)
    return next(row for row in run.requests if (row.arm, row.concurrency, row.repetition, row.index) == where)
