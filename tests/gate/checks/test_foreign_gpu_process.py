"""foreign-gpu-process: the two arms alone on the GPU."""

from __future__ import annotations

from typing import Any


def test_a_stranger_on_the_gpu_voids_the_leg(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    (finding,) = found(build.alter_leg(run, leg, gpu_foreign_processes=("pid 7 (python)", "pid 9")))
    assert (finding.code, finding.leg_id) == ("foreign-gpu-process", leg)
    assert finding.message == "pid 7 (python), pid 9 on the GPU during the leg; expected the two arms alone"


def test_nobody_and_a_list_that_cannot_be_read_are_silent(build: Any, found: Any) -> None:
    run = build.run()
    assert found(run) == []
    assert found(build.alter_leg(run, build.leg_id(run), gpu_foreign_processes=None)) == []
