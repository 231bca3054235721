"""memory-not-returned: each server of an arm begins with what its first one had."""

from __future__ import annotations

from typing import Any

import pytest

GIB = 2**30
ALTERNATE = {"protocol": {"residency": "alternate"}}


def fresh_blocks(build: Any) -> Any:
    """A server of its own for each arm and repetition."""
    run = build.run(**ALTERNATE)
    for leg in [leg for leg in run.legs if leg.repetition]:
        start_id = f"{leg.arm}-{leg.repetition + 1}"
        run = build.alter_leg(run, leg.leg_id, server_start_id=start_id, server_start_id_after=start_id)
    return run


@pytest.mark.parametrize(
    ("field", "sign", "where"),
    [("host_available_before_bytes", -1, "host"), ("gpu_used_before_bytes", 1, "GPU")],
)
def test_one_gibibyte_is_the_limit(build: Any, found: Any, field: str, sign: int, where: str) -> None:
    run = fresh_blocks(build)
    leg = build.leg_id(run, "oracle", 1, 2)
    good = getattr(next(row for row in run.legs if row.leg_id == leg), field)
    assert found(build.alter_leg(run, leg, **{field: good + sign * GIB})) == []
    (finding,) = found(build.alter_leg(run, leg, **{field: good + sign * (GIB + 1)}))
    assert (finding.code, finding.leg_id) == ("memory-not-returned", leg)
    assert f"1.00 GiB of {where} memory were gone since {build.leg_id(run, 'oracle', 1, 0)}" in finding.message
    assert found(build.alter_leg(run, leg, **{field: good + sign * 3 * GIB}))[0].beyond == 3
    assert found(build.alter_leg(run, leg, **{field: good - sign * 60 * GIB})) == []


def test_a_server_that_stays_up_may_grow(build: Any, found: Any) -> None:
    run = build.run()
    for leg in run.legs[4:]:
        run = build.alter_leg(run, leg.leg_id, gpu_used_before_bytes=90 * GIB, host_available_before_bytes=GIB)
    assert found(run) == []


def test_only_the_first_leg_of_a_server_is_compared(build: Any, found: Any) -> None:
    """Later ones have the server's own growth in them."""
    run = fresh_blocks(build)
    assert found(build.alter_leg(run, build.leg_id(run, "oracle", 2, 1), gpu_used_before_bytes=90 * GIB)) == []


def test_less_before_the_first_server_than_before_later_ones_is_no_leak(build: Any, found: Any) -> None:
    run = fresh_blocks(build)
    assert found(build.alter_leg(run, build.leg_id(run, "oracle", 1, 0), gpu_used_before_bytes=90 * GIB)) == []


def test_the_first_leg_of_the_arm_is_the_measure(build: Any, found: Any) -> None:
    """Later legs of a server have its growth in them, and would hide a leak."""
    run = fresh_blocks(build)
    for concurrency, repetition in ((2, 0), (2, 2)):
        run = build.alter_leg(run, build.leg_id(run, "oracle", concurrency, repetition), gpu_used_before_bytes=90 * GIB)
    leg = build.leg_id(run, "oracle", 1, 1)
    assert [f.leg_id for f in found(build.alter_leg(run, leg, gpu_used_before_bytes=63 * GIB))][:1] == [leg]


def test_arms_are_not_compared(build: Any, found: Any) -> None:
    run = fresh_blocks(build)
    for leg in [leg for leg in run.legs if leg.arm == "oracle"]:
        run = build.alter_leg(run, leg.leg_id, gpu_used_before_bytes=100 * GIB)
    assert found(run) == []


@pytest.mark.parametrize("repetition", [0, 1])
def test_what_was_not_read_is_not_judged(build: Any, found: Any, repetition: int) -> None:
    run = fresh_blocks(build)
    unread = {"gpu_used_before_bytes": None, "host_available_before_bytes": None}
    assert found(build.alter_leg(run, build.leg_id(run, "candidate", 1, repetition), **unread)) == []
