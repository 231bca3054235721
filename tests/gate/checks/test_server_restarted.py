"""server-restarted: crashes are told from resumed runs and from planned restarts."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate import messages


def restart(build: Any, run: Any, arm: str, after: int, start_id: str) -> Any:
    for leg in [leg for leg in run.legs if leg.arm == arm][after:]:
        run = build.alter_leg(run, leg.leg_id, server_start_id=start_id, server_start_id_after=start_id)
    return run


def test_a_restart_within_a_leg_voids_it(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    (finding,) = found(build.alter_leg(run, leg, server_start_id_after="candidate-2"), "server-restarted")[:1]
    assert finding.leg_id == leg
    assert "candidate-1 before, candidate-2 after" in finding.message


def test_a_crash_between_legs_voids_the_first_leg_after_it(build: Any, found: Any) -> None:
    run = build.run()
    candidate = [leg for leg in run.legs if leg.arm == "candidate"]
    (finding,) = found(restart(build, run, "candidate", 2, "candidate-2"))
    assert (finding.code, finding.leg_id) == ("server-restarted", candidate[2].leg_id)


def test_a_resumed_run_restarts_both_and_is_not_held_against_it(build: Any, found: Any) -> None:
    run = restart(build, build.run(), "candidate", 2, "candidate-2")
    assert found(restart(build, run, "oracle", 2, "oracle-2"), "server-restarted") == []


def test_crashes_of_both_arms_at_different_times_do_not_excuse_each_other(build: Any, found: Any) -> None:
    run = restart(build, build.run(), "candidate", 1, "candidate-2")
    findings = found(restart(build, run, "oracle", 4, "oracle-2"), "server-restarted")
    assert [f.arm for f in findings] == ["candidate", "oracle"]


def test_a_crash_is_not_excused_by_one_that_was_over_a_leg_earlier(build: Any, found: Any) -> None:
    """The candidate still answered as it was, in a leg after the other arm came back: not a run that was resumed."""
    run = build.run()
    candidate, oracle = ([k for k, leg in enumerate(run.legs) if leg.arm == arm] for arm in ("candidate", "oracle"))
    index = max(k for k, at in enumerate(oracle) if at < candidate[2])
    assert oracle[index] > candidate[1]
    run = restart(build, restart(build, run, "candidate", 3, "candidate-2"), "oracle", index, "oracle-2")
    findings = found(run, "server-restarted")
    assert [f.leg_id for f in findings] == [run.legs[candidate[3]].leg_id, run.legs[oracle[index]].leg_id]


def resumed(run: Any) -> Any:
    return dataclasses.replace(run, preflight=(*run.preflight, messages.resumed(1, len(run.legs))))


@pytest.mark.parametrize("first", ["candidate", "oracle"])
def test_an_arm_without_a_leg_before_the_cut_counts_as_restarted_with_the_other(
    build: Any, found: Any, first: str
) -> None:
    """Ctrl-C in the second leg: the first alone was there, and only its arm's start id can be seen to change."""
    run = build.run(coin=first)
    assert run.legs[0].arm == first != run.legs[1].arm
    cut = restart(build, run, first, 1, f"{first}-2")
    assert found(resumed(cut), "server-restarted") == []
    (finding,) = found(cut, "server-restarted")
    assert finding.arm == first


def test_an_arm_that_never_had_a_leg_excuses_any_restart_of_a_resumed_run(build: Any, found: Any) -> None:
    run = build.run()
    first = run.legs[0].arm
    run = restart(build, run, first, 1, f"{first}-2")
    kept = {leg.leg_id for leg in run.legs if leg.arm == first}
    alone = dataclasses.replace(
        run,
        legs=tuple(leg for leg in run.legs if leg.leg_id in kept),
        requests=tuple(row for row in run.requests if row.leg_id in kept),
        telemetry=tuple(row for row in run.telemetry if row.leg_id in kept),
    )
    assert found(resumed(alone), "server-restarted") == []
    assert [f.arm for f in found(alone, "server-restarted")] == [first]


def test_a_crash_in_a_resumed_run_is_one(build: Any, found: Any) -> None:
    run = build.run()
    first = run.legs[0].arm
    legs = [leg for leg in run.legs if leg.arm == first]
    run = restart(build, restart(build, run, first, 1, f"{first}-2"), first, 3, f"{first}-3")
    assert [f.leg_id for f in found(resumed(run), "server-restarted")] == [legs[3].leg_id]


def test_planned_restarts_are_planned(build: Any, found: Any) -> None:
    run = restart(build, build.run(protocol={"residency": "alternate"}), "candidate", 2, "candidate-2")
    assert found(run, "server-restarted") == []


def test_a_start_id_that_was_not_read_again_is_not_a_fault(build: Any, found: Any) -> None:
    run = build.run()
    for leg in run.legs:
        run = build.alter_leg(run, leg.leg_id, server_start_id_after=None)
    assert found(run, "server-restarted") == []


def test_a_restart_within_a_leg_is_said_of_that_leg_alone(build: Any, found: Any) -> None:
    """The legs after it find the server that it left."""
    run = build.run()
    legs = [leg for leg in run.legs if leg.arm == "candidate"]
    run = restart(build, run, "candidate", 2, "candidate-2")
    run = build.alter_leg(run, legs[1].leg_id, server_start_id_after="candidate-2")
    assert [f.leg_id for f in found(run, "server-restarted")] == [legs[1].leg_id]


def test_one_start_id_that_was_not_read_again_is_not_a_fault_either(build: Any, found: Any) -> None:
    """The arms are not excused by each other: only one has such a leg."""
    run = build.run()
    assert found(build.alter_leg(run, build.leg_id(run), server_start_id_after=None), "server-restarted") == []


def test_a_restart_is_said_once_where_no_start_id_was_read_after_the_leg(build: Any, found: Any) -> None:
    run = restart(build, build.run(), "candidate", 1, "candidate-2")
    legs = [leg for leg in run.legs if leg.arm == "candidate"]
    run = build.alter_leg(run, legs[1].leg_id, server_start_id_after=None)
    assert [f.leg_id for f in found(run, "server-restarted")] == [legs[1].leg_id]


@pytest.mark.parametrize(("before", "after"), [("attached", "attached@7.000"), ("attached@7.000", "attached")])
def test_a_start_that_an_attached_server_did_not_tell_is_no_restart(
    build: Any, found: Any, before: str, after: str
) -> None:
    run = restart(build, build.run(), "candidate", 0, "attached@7.000")
    leg = build.leg_id(run)
    assert found(build.alter_leg(run, leg, server_start_id=before, server_start_id_after=after)) == []


def test_a_restart_behind_a_start_that_was_not_told_is_still_one(build: Any, found: Any) -> None:
    run = restart(build, build.run(), "candidate", 0, "attached@7.000")
    legs = [leg for leg in run.legs if leg.arm == "candidate"]
    run = restart(build, run, "candidate", 2, "attached@8.000")
    run = build.alter_leg(run, legs[1].leg_id, server_start_id="attached", server_start_id_after="attached")
    (finding,) = found(run)
    assert (finding.code, finding.leg_id) == ("server-restarted", legs[2].leg_id)
