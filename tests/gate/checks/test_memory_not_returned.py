"""memory-not-returned: every repetition begins with what the first one had."""

from __future__ import annotations

from typing import Any

import pytest

GIB = 2**30


@pytest.mark.parametrize(
    ("field", "sign", "where"),
    [("host_available_before_bytes", -1, "host"), ("gpu_used_before_bytes", 1, "GPU")],
)
def test_one_gibibyte_is_the_limit(build: Any, found: Any, field: str, sign: int, where: str) -> None:
    run = build.run()
    leg = build.leg_id(run, "oracle", 1, 2)
    good = getattr(next(row for row in run.legs if row.leg_id == leg), field)
    assert found(build.alter_leg(run, leg, **{field: good + sign * GIB})) == []
    (finding,) = found(build.alter_leg(run, leg, **{field: good + sign * (GIB + 1)}))
    assert (finding.code, finding.leg_id) == ("memory-not-returned", leg)
    assert f"1.00 GiB of {where} memory were gone since {build.leg_id(run, 'oracle', 1, 0)}" in finding.message
    assert found(build.alter_leg(run, leg, **{field: good - sign * 60 * GIB})) == []


def test_the_first_leg_is_what_the_later_ones_are_held_to(build: Any, found: Any) -> None:
    """Less before the first leg than before the others is no leak."""
    run = build.run()
    assert found(build.alter_leg(run, build.leg_id(run, "oracle", 1, 0), gpu_used_before_bytes=90 * GIB)) == []


def test_arms_and_levels_are_not_compared(build: Any, found: Any) -> None:
    run = build.run()
    for repetition in range(3):
        run = build.alter_leg(run, build.leg_id(run, "oracle", 2, repetition), gpu_used_before_bytes=100 * GIB)
    assert found(run) == []


@pytest.mark.parametrize("repetition", [0, 1])
def test_what_was_not_read_is_not_judged(build: Any, found: Any, repetition: int) -> None:
    run = build.run()
    unread = {"gpu_used_before_bytes": None, "host_available_before_bytes": None}
    assert found(build.alter_leg(run, build.leg_id(run, "candidate", 2, repetition), **unread)) == []
