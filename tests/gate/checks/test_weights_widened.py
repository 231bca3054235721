"""weights-widened: the candidate's weights stay in the dtype they were shipped in."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.gate.checks.test_engine_stale import made_of


def test_a_wider_module_is_named(build: Any, found: Any) -> None:
    (finding,) = found(made_of(build, build.run(), widened_modules=["lm_head", "embed"]))
    assert (finding.code, finding.arm, finding.concurrency) == ("weights-widened", "candidate", None)
    assert "holds lm_head wider than shipped (2 such modules)" in finding.message


@pytest.mark.parametrize("widened", [[], None, "lm_head"])
def test_none_and_not_reported_are_no_finding(build: Any, found: Any, widened: Any) -> None:
    assert found(made_of(build, build.run(), widened_modules=widened)) == []


def test_an_arm_without_an_identity_has_no_modules(build: Any, found: Any) -> None:
    assert found(dataclasses.replace(build.run(), identities=()), "weights-widened") == []
