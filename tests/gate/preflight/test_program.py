"""A program that is not there is told before any server has started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gate.errors import PreconditionError
from gate.plan import Plan
from gate.preflight import program


def with_argv(plan: Plan, argv: tuple[str, ...] | None, **env: str) -> Plan:
    changed = plan.candidate.model_copy(update={"argv": argv, "env": env})
    return plan.model_copy(update={"candidate": changed, "oracle": plan.oracle.model_copy(update={"argv": None})})


def test_no_such_program_is_one_line(plan: Callable[..., Plan], tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="no program 'my-server' for the candidate; expected one on PATH"):
        program.check(with_argv(plan(), ("my-server", "--port", "1"), PATH="/usr/bin"), tmp_path)


def test_it_is_looked_for_where_the_arm_will_be_started(plan: Callable[..., Plan], tmp_path: Path) -> None:
    mine = tmp_path / "my-server"
    mine.touch()
    here = with_argv(plan(), ("my-server",), PATH=str(tmp_path))
    with pytest.raises(PreconditionError, match="a path to one that may be executed"):
        program.check(here, tmp_path)
    mine.chmod(0o755)
    assert program.check(here, tmp_path) == ()
    assert program.check(with_argv(plan(), (str(mine),)), tmp_path) == ()


def test_an_attached_server_needs_none(plan: Callable[..., Plan], tmp_path: Path) -> None:
    assert program.check(with_argv(plan(), None), tmp_path) == ()
