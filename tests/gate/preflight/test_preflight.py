"""The list: every check file is in it, they run in order, findings add up, and the first refusal stops."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gate import preflight as package
from gate.errors import PreconditionError
from gate.observe.rows import Finding
from gate.plan import Plan


def finding(code: str) -> Finding:
    return Finding(code=code, message="m", hint="h")


def test_findings_of_all_checks_come_back_in_order(
    plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = tuple(lambda *_, code=code: (finding(code),) for code in ("a", "b"))
    monkeypatch.setattr(package, "CHECKS", checks)
    assert [found.code for found in package.preflight(plan(), tmp_path)] == ["a", "b"]


def test_the_first_refusal_stops(plan: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def refuse(*_: object) -> tuple[Finding, ...]:
        raise PreconditionError("no")

    monkeypatch.setattr(package, "CHECKS", (refuse, lambda *_: ran.append("second") or ()))
    with pytest.raises(PreconditionError, match="no"):
        package.preflight(plan(), tmp_path)
    assert ran == []


def test_every_module_with_a_check_is_in_the_list() -> None:
    import importlib

    modules = [importlib.import_module(f"gate.preflight.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    assert {m.check for m in modules if hasattr(m, "check")} == set(package.CHECKS)
