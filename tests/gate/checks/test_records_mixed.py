"""records-mixed: every record is this run's, this leg's, and its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

CODE = "records-mixed"


@pytest.mark.parametrize(("run_id", "faults"), [("run-1", 0), (None, 0), ("run-2", 1)])
def test_a_leg_of_another_run(build: Any, found: Any, run_id: str | None, faults: int) -> None:
    run = build.run()
    legs = tuple(leg.model_copy(update={"run_id": run_id}) if leg.order == 3 else leg for leg in run.legs)
    made = found(dataclasses.replace(run, legs=legs))
    assert [(f.code, f.leg_id, "run-2; expected run-1" in f.message) for f in made] == [
        (CODE, run.legs[3].leg_id, True)
    ] * faults


@pytest.mark.parametrize(
    ("started_at", "said"),
    [
        ("2025-12-31T23:59:59.999+00:00", "before the run"),
        ("2026-01-01T00:00:00.000Z", None),
        ("2026-01-01T00:10:00.900Z", None),
        ("2026-01-01T00:10:01.000Z", "after the run ended"),
    ],
)
def test_a_leg_of_another_morning(build: Any, found: Any, started_at: str, said: str | None) -> None:
    run = build.run()
    legs = tuple(leg.model_copy(update={"started_at": started_at}) if leg.order == 11 else leg for leg in run.legs)
    run = dataclasses.replace(run, legs=legs)
    assert [said in finding.message for finding in found(run, CODE)] == ([True] if said else [])
    if said and said.startswith("after"):
        assert found(dataclasses.replace(run, finished_at=None), CODE) == []


@pytest.mark.parametrize(("key", "shift_ns"), [("start_ns", 1), ("end_ns", -1)])
def test_a_request_outside_its_leg(build: Any, found: Any, key: str, shift_ns: int) -> None:
    run = build.run()
    leg = next(leg for leg in run.legs if leg.leg_id == build.leg_id(run))
    (finding,) = found(build.alter_leg(run, leg.leg_id, **{key: getattr(leg, key) + shift_ns}), CODE)
    assert finding.leg_id == leg.leg_id
    assert "was not sent and ended within the leg" in finding.message


def test_a_request_that_never_ended_was_sent_in_its_leg(build: Any, found: Any) -> None:
    run = build.run()
    assert found(build.alter_request(run, build.leg_id(run), 0, end_ns=None), CODE) == []


def test_records_written_twice(build: Any, found: Any) -> None:
    """The oracle's requests once more, under the candidate's name."""
    run = build.run()
    source, target = build.leg_id(run, "oracle", 1, 0), build.leg_id(run, "candidate", 1, 0)
    stamps = {
        r.index: {k: getattr(r, k) for k in ("sent_ns", "token_times_ns", "first_token_ns", "last_token_ns", "end_ns")}
        for r in run.requests
        if r.leg_id == source
    }
    for index, fields in stamps.items():
        run = build.alter_request(run, target, index, **fields)
    times = {k: getattr(next(leg for leg in run.legs if leg.leg_id == source), k) for k in ("start_ns", "end_ns")}
    made = found(build.alter_leg(run, target, **times), CODE)
    assert [(f.leg_id, f"stamps of {target}" in f.message) for f in made] == [(source, True)]


def test_two_legs_without_requests_are_not_copies(build: Any, found: Any) -> None:
    run = build.run()
    lost = {build.leg_id(run, "oracle", 1, 0), build.leg_id(run, "candidate", 1, 0)}
    assert found(dataclasses.replace(run, requests=tuple(r for r in run.requests if r.leg_id not in lost)), CODE) == []
