"""server-logged-error: the log is part of the evidence."""

from __future__ import annotations

from typing import Any


def test_an_error_in_the_log_voids_the_leg(build: Any, found: Any) -> None:
    run = build.run()
    leg = build.leg_id(run)
    (finding,) = found(build.alter_leg(run, leg, server_log_errors=1, server_log_first_error="ERROR worker died"))
    assert (finding.code, finding.leg_id) == ("server-logged-error", leg)
    assert finding.message == "the server logged 1 errors: ERROR worker died; expected 0"


def test_a_quiet_log_and_an_attached_server_are_silent(build: Any, found: Any) -> None:
    run = build.run()
    assert found(run) == []
    assert found(build.alter_leg(run, build.leg_id(run), server_log_errors=None)) == []
