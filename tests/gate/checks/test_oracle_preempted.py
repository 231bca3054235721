"""oracle-preempted: the denominator had room for its requests."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(("preemptions", "faults"), [(None, 0), (0, 0), (1, 1)])
def test_one_preemption_is_enough(build: Any, found: Any, preemptions: int | None, faults: int) -> None:
    run = build.run()
    leg = build.leg_id(run, "oracle")
    broken = run if preemptions == 0 else build.alter_leg(run, leg, preemptions=preemptions)
    made = found(broken)
    assert [(f.code, f.leg_id, f.concurrency) for f in made] == [("oracle-preempted", leg, 2)] * faults
    assert all("preempted 1 time " in f.message for f in made)


def test_a_candidate_that_preempts_loses_by_itself(build: Any, found: Any) -> None:
    run = build.run()
    assert found(build.alter_leg(run, build.leg_id(run, "candidate"), preemptions=3)) == []
