"""memory-swapped: no latency of the disk."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(("swapped", "void"), [(None, False), (2**20, False), (2**20 + 1, True)])
def test_a_mebibyte_is_the_limit(build: Any, found: Any, swapped: int | None, void: bool) -> None:
    run = build.run()
    leg = build.leg_id(run)
    findings = found(build.alter_leg(run, leg, host_swapped_bytes=swapped))
    assert [(f.code, f.leg_id) for f in findings] == ([("memory-swapped", leg)] if void else [])


def test_the_message_has_both_numbers(build: Any, found: Any) -> None:
    run = build.run()
    (finding,) = found(build.alter_leg(run, build.leg_id(run), host_swapped_bytes=5 * 2**19))
    assert finding.message == "2.5 MiB went through swap during the leg; expected at most 1 MiB"
    assert finding.beyond == 2.5
