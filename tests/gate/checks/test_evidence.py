"""evidence: the records as checks and the judge ask for them; what does not belong to the plan is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.evidence import Evidence, first
from gate.errors import StorageError
from gate.metrics import AXES, SERVER_AXES, Axis
from gate.observe.rows import ARMS

AXIS = {axis.name: axis for axis in (*AXES, *SERVER_AXES)}
TPOT = AXIS["tpot_median_ms"]
GPU = AXIS["peak_gpu_bytes"]


def extended(build: Any, *, ran: bool = True) -> Any:
    """Two repetitions and an extra block of two more; it ran at one request, or nowhere."""
    whole = build.run(protocol={"repetitions": 4})
    legs = {leg.leg_id: leg for leg in whole.plan.legs}
    extra = tuple(leg for leg in legs.values() if leg.repetition >= 2)
    kept = tuple(leg for leg in legs.values() if leg.repetition < 2)
    plan = whole.plan.model_copy(update={"legs": kept, "extra_legs": extra})
    unrun = [leg.leg_id for leg in extra if leg.concurrency == 2 or not ran]
    return build.without_legs(dataclasses.replace(whole, plan=plan), *unrun)


def refusal(run: Any) -> str:
    with pytest.raises(StorageError) as caught:
        Evidence.of(run)
    return str(caught.value)


def test_a_leg_that_the_plan_does_not_know_is_refused(build: Any) -> None:
    run = build.run()
    stray = run.legs[3].model_copy(update={"leg_id": "stray"})
    assert refusal(dataclasses.replace(run, legs=(*run.legs, stray))) == (
        "run run-1 holds leg stray that its plan does not know; expected the 12 legs of plan plan-1, once each; "
        "the records were mixed with another run's: measure again"
    )


def test_a_leg_that_is_there_twice_is_refused(build: Any) -> None:
    run = build.run()
    assert refusal(dataclasses.replace(run, legs=(*run.legs, run.legs[0]))) == (
        "run run-1 holds leg 000-candidate-c1-r0 twice; expected the 12 legs of plan plan-1, once each; "
        "the records were mixed with another run's: measure again"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arm": "oracle"}, "oracle c1 r0"),
        ({"concurrency": 2}, "candidate c2 r0"),
        ({"repetition": 1}, "candidate c1 r1"),
    ],
)
@pytest.mark.parametrize("kind", ["legs", "requests"])
def test_a_record_under_another_legs_name_is_refused(build: Any, kind: str, change: Any, said: str) -> None:
    run = build.run()
    first_row, *rest = getattr(run, kind)
    assert refusal(dataclasses.replace(run, **{kind: (first_row.model_copy(update=change), *rest)})) == (
        f"run run-1 holds a record of {said} as 000-candidate-c1-r0; expected records of the plan's own legs; "
        "the records were mixed or edited: measure again"
    )


def test_a_request_of_no_planned_leg_is_refused(build: Any) -> None:
    run = build.run()
    stray = run.requests[0].model_copy(update={"leg_id": "stray"})
    assert "holds a record of candidate c1 r0 as stray;" in refusal(
        dataclasses.replace(run, requests=(*run.requests, stray))
    )


def test_legs_are_in_the_order_they_ran_and_requests_by_index(build: Any) -> None:
    """By the clock; at one stamp, which has whole seconds, by their place in the plan."""
    run = build.run()
    last = run.legs[0].model_copy(update={"started_at": "2026-01-01T00:00:09Z"})
    shuffled = dataclasses.replace(
        run, legs=(*reversed(run.legs[1:]), last), requests=tuple(reversed(run.requests)), plan=run.plan
    )
    evidence = Evidence.of(shuffled)
    assert [leg.name for leg in evidence.legs] == [leg.leg_id for leg in (*run.legs[1:], run.legs[0])]
    for leg in evidence.legs:
        assert leg.planned.leg_id == leg.name
        assert [request.index for request in leg.requests] == list(range(leg.planned.requests))
        assert {request.leg_id for request in leg.requests} == {leg.name}


def test_a_leg_without_requests_is_a_leg(build: Any) -> None:
    run = build.run()
    bare = dataclasses.replace(run, requests=tuple(r for r in run.requests if r.leg_id != run.legs[0].leg_id))
    assert Evidence.of(bare).legs[0].requests == ()


def test_a_legs_length_is_in_seconds(build: Any) -> None:
    run = build.run()
    altered = build.alter_leg(run, run.legs[0].leg_id, start_ns=500_000_000, end_ns=3_000_000_000)
    assert Evidence.of(altered).legs[0].duration_s == 2.5


def test_levels_ascend_and_are_the_plans(build: Any) -> None:
    """Also where none of their legs ran."""
    run = build.run(protocol={"concurrency": (4, 1, 2)})
    assert Evidence.of(dataclasses.replace(run, legs=(), requests=())).concurrencies == (1, 2, 4)


def test_what_was_asked_of_it_makes_it_no_other(build: Any) -> None:
    run = build.run()
    one, other = Evidence.of(run), Evidence.of(run)
    one.values(TPOT, 1, "oracle")
    assert one == other


@pytest.mark.parametrize("ran", [False, True])
def test_repetitions_with_and_without_extra_blocks(build: Any, ran: bool) -> None:
    evidence = Evidence.of(extended(build, ran=ran))
    assert evidence.repetitions == 2
    assert [evidence.extended(c) for c in (1, 2)] == [ran, False]
    assert [evidence.repetitions_at(c) for c in (1, 2)] == [4 if ran else 2, 2]


def test_one_leg_of_an_extra_block_is_enough_to_have_begun(build: Any) -> None:
    run = extended(build)
    _, *rest = [leg.leg_id for leg in run.plan.extra_legs if leg.concurrency == 1]
    begun = Evidence.of(build.without_legs(run, *rest))
    assert (begun.extended(1), begun.repetitions_at(1)) == (True, 4)
    assert {leg.leg_id for leg in begun.missing} == set(rest)


def test_a_plan_without_legs_has_no_repetition_and_no_request(build: Any) -> None:
    run = build.run()
    empty = Evidence.of(dataclasses.replace(run, plan=run.plan.model_copy(update={"legs": ()}), legs=(), requests=()))
    assert (empty.repetitions, empty.requests_per_leg(1), empty.concurrencies) == (0, 0, ())


def test_requests_of_a_leg_are_the_fewest_planned_at_its_level(build: Any) -> None:
    run = build.run()
    legs = tuple(
        leg.model_copy(update={"requests": 3}) if leg.leg_id == build.leg_id(run) else leg for leg in run.plan.legs
    )
    evidence = Evidence.of(dataclasses.replace(run, plan=run.plan.model_copy(update={"legs": legs})))
    assert [evidence.requests_per_leg(c) for c in (1, 2, 3)] == [2, 3, 0]


def test_a_busy_host_is_what_preflight_says(build: Any) -> None:
    run = build.run()
    made = [build.finding(code=code) for code in ("made-up", "host-busy")]
    assert [Evidence.of(dataclasses.replace(run, preflight=tuple(made[:k]))).host_busy for k in (0, 1, 2)] == [
        False,
        False,
        True,
    ]


def test_legs_that_did_not_run_are_missing(build: Any) -> None:
    run = build.run()
    gone = build.leg_id(run)
    assert Evidence.of(run).missing == ()
    assert [leg.leg_id for leg in Evidence.of(build.without_legs(run, gone)).missing] == [gone]


def test_legs_of_an_extra_block_are_missing_where_it_began(build: Any) -> None:
    assert Evidence.of(extended(build, ran=False)).missing == ()
    begun = extended(build)
    gone = (
        build.leg_id(begun, "oracle", 1, 1),
        next(leg.leg_id for leg in begun.plan.extra_legs if (leg.concurrency, leg.repetition) == (1, 3)),
    )
    assert [leg.leg_id for leg in Evidence.of(build.without_legs(begun, *gone)).missing] == list(gone)


def test_legs_by_arm_and_level(build: Any) -> None:
    evidence = Evidence.of(build.run())
    where = [(leg.row.arm, leg.row.concurrency) for leg in evidence.legs]
    assert {arm: len(evidence.of_arm(arm)) for arm in ARMS} == {"candidate": 6, "oracle": 6}
    assert {leg.row.arm for leg in evidence.of_arm("oracle")} == {"oracle"}
    assert [leg.name for leg in evidence.at(2)] == [leg.name for leg in evidence.legs if leg.row.concurrency == 2]
    assert len(evidence.at(2, "oracle")) == where.count(("oracle", 2)) == 3
    assert {(leg.row.arm, leg.row.concurrency) for leg in evidence.at(2, "oracle")} == {("oracle", 2)}


def test_pairs_are_of_repetitions_that_both_arms_ran(build: Any) -> None:
    run = build.run()
    evidence = Evidence.of(build.without_legs(run, build.leg_id(run, "oracle", 2, 0), build.leg_id(run)))
    pairs = [[(leg.row.arm, leg.row.repetition, leg.row.concurrency) for leg in pair] for pair in evidence.pairs(2)]
    assert pairs == [[("candidate", 2, 2), ("oracle", 2, 2)]]
    assert [pair[0].row.repetition for pair in evidence.pairs(1)] == [0, 1, 2]


def test_each_arm_has_its_plan(build: Any) -> None:
    evidence = Evidence.of(build.run())
    assert [evidence.arm_plan(arm).arm for arm in ARMS] == list(ARMS)


def test_an_arms_identity_is_what_its_first_leg_found(build: Any) -> None:
    """Not the one recorded first; that one stands in where the leg's is not recorded, or no leg ran."""
    run = build.run()
    ours = next(identity for identity in run.identities if identity.arm == "candidate")
    early = ours.model_copy(update={"digest": "early", "version": "9"})
    told = dataclasses.replace(run, identities=(early, *run.identities))
    assert Evidence.of(told).identity("candidate") == ours
    assert Evidence.of(dataclasses.replace(told, legs=(), requests=())).identity("candidate") == early
    unknown = build.alter_leg(told, run.legs[0].leg_id, identity_before="unreachable")
    assert Evidence.of(unknown).identity("candidate") == early
    assert Evidence.of(dataclasses.replace(run, identities=(ours,))).identity("oracle") is None


def test_values_are_by_repetition_and_none_where_there_is_no_leg_or_no_value(build: Any) -> None:
    run = build.run(lambda leg: 1.0 + leg.repetition)
    gone, silent = build.leg_id(run, "oracle", 1, 0), build.leg_id(run, "oracle", 1, 2)
    run = build.without_legs(run, gone)
    run = build.alter_request(run, silent, 0, token_times_ns=(), first_token_ns=None, last_token_ns=None)
    evidence = Evidence.of(run)
    assert evidence.values(TPOT, 1, "oracle") == (None, 5.0, None)
    assert evidence.values(TPOT, 1, "candidate") == (10.0, 5.0, pytest.approx(10 / 3, rel=1e-5))
    assert evidence.values(TPOT, 1, "oracle") is evidence.values(TPOT, 1, "oracle")


def test_values_of_an_extra_block_come_last(build: Any) -> None:
    evidence = Evidence.of(extended(build))
    assert [len(evidence.values(TPOT, c, "oracle")) for c in (1, 2)] == [4, 2]


def test_values_of_one_question_answer_no_other(build: Any) -> None:
    """Each differs in the axis, the level or the arm alone."""
    run = build.run(lambda leg: 2.0 if (leg.arm, leg.concurrency) == ("candidate", 1) else 1.0)
    evidence = Evidence.of(run)
    questions: list[tuple[Axis, int, Any]] = [
        (TPOT, 1, "candidate"),
        (TPOT, 1, "oracle"),
        (TPOT, 2, "candidate"),
        (AXIS["ttft_median_ms"], 1, "candidate"),
    ]
    assert [evidence.values(*question)[0] for question in questions] == [5.0, 10.0, 10.0, 25.0]


def test_axes_of_the_requests_come_first_and_those_of_the_server_where_a_leg_has_them(build: Any) -> None:
    run = build.run()
    plain = [axis.name for axis in Evidence.of(run).axes(1)]
    assert "peak_gpu_bytes" not in plain
    assert "tpot_p90_ms" not in plain
    told = build.alter_leg(run, build.leg_id(run, "oracle", 2, 0), gpu_peak_bytes=1)
    assert [axis.name for axis in Evidence.of(told).axes(1)] == [*plain, "peak_gpu_bytes"]
    asked = build.run(protocol={"primary": ("tpot_p90_ms", "peak_gpu_bytes")})
    assert {"tpot_p90_ms", "peak_gpu_bytes"} <= {axis.name for axis in Evidence.of(asked).axes(1)}


def test_a_warm_servers_peak_is_its_own_of_the_repetition(build: Any) -> None:
    """The largest of any level; neither another repetition's nor that of a server started anew in between."""
    run = build.run()
    sizes = {
        build.leg_id(run, "oracle", c, r): size
        for (c, r), size in {(1, 0): 7, (2, 0): 5, (1, 1): 9, (2, 1): 6, (1, 2): 3, (2, 2): 4}.items()
    }
    for row in run.legs:
        run = build.alter_leg(run, row.leg_id, gpu_peak_bytes=sizes.get(row.leg_id, 1))
    assert Evidence.of(run).values(GPU, 2, "oracle") == (7, 9, 4)
    anew = build.alter_leg(run, build.leg_id(run, "oracle", 2, 1), server_start_id="oracle-2")
    assert Evidence.of(anew).values(GPU, 2, "oracle") == (7, 6, 4)


def test_a_leg_whose_peak_was_not_read_has_none_and_takes_none(build: Any) -> None:
    run = build.run()
    for row in run.legs:
        if row.leg_id != build.leg_id(run, "oracle", 2, 1):
            run = build.alter_leg(run, row.leg_id, gpu_peak_bytes=5)
    evidence = Evidence.of(run)
    assert evidence.values(GPU, 2, "oracle") == (5, None, 5)
    assert evidence.values(GPU, 1, "oracle") == (5, 5, 5)


def test_the_source_that_most_legs_have_counts_and_the_best_of_equals(build: Any) -> None:
    run = build.run()
    for row in run.legs:
        run = build.alter_leg(run, row.leg_id, gpu_peak_bytes=1, gpu_reported_bytes=2, gpu_start_bytes=3)
    assert Evidence.of(run).values(GPU, 2, "oracle") == (1, 1, 1)
    fewer = build.alter_leg(run, build.leg_id(run, "candidate"), gpu_peak_bytes=None)
    assert Evidence.of(fewer).values(GPU, 2, "oracle") == (2, 2, 2)
    assert Evidence.of(fewer).values(GPU, 1, "oracle") == (1, 1, 1), "at each level for itself"


def test_requests_are_shown_by_the_first(build: Any) -> None:
    rows = build.run(workload={"requests_per_stream": 4}).requests[:4]
    assert (first(rows[:1]), first(rows[1:3]), first(rows[1:])) == ("#0", "#1 and 1 more", "#1 and 2 more")
