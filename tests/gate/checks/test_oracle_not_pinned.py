"""oracle-not-pinned: what answered, and what was installed, is what the plan's pin names."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.oracle_not_pinned import other

CODE = "oracle-not-pinned"


def looked(run: Any, when: str, **changes: Any) -> Any:
    looks = tuple(look.model_copy(update=changes) if look.when == when else look for look in run.pins)
    return dataclasses.replace(run, pins=looks)


@pytest.mark.parametrize(
    ("found", "pinned", "differs"),
    [
        ("0.25.0", "0.25.0", False),
        ("0.25.1", "0.25.0", True),
        ("2.11.0+cu130", "2.11.0", False),
        ("2.13.0", "2.13.0+cpu", True),
        ("2.13.0+cpu", "2.13.0+cpu", False),
        ("0.1.dev1+g5559", "0.23.1+g5559", True),
    ],
)
def test_a_local_part_counts_where_the_pin_has_one(found: str, pinned: str, differs: bool) -> None:
    assert other(found, pinned) is differs


def test_another_runtime_version(build: Any, found: Any) -> None:
    (finding,) = found(build.alter_identity(build.run(), "oracle", version="1.0.precompiled"))
    assert (finding.code, finding.arm, finding.leg_id) == (CODE, "oracle", None)
    assert "version is 1.0.precompiled, pinned 1.0" in finding.message


@pytest.mark.parametrize("when", ["start", "end"])
def test_another_flashinfer_before_or_after(build: Any, found: Any, when: str) -> None:
    packages = {"vllm": "1.0", "flashinfer-python": "0.7"}
    (finding,) = found(looked(build.run(), when, oracle=packages))
    assert (finding.code, finding.arm) == (CODE, "oracle")
    assert "flashinfer-python is 0.7, pinned 0.6" in finding.message


def test_a_changed_file_of_the_wheel_is_said_once(build: Any, found: Any) -> None:
    said = "vllm/envs.py is changed, pinned as in its wheel"
    run = looked(looked(build.run(), "start", oracle_differs=(said,)), "end", oracle_differs=(said,))
    (finding,) = found(run)
    assert finding.message.count(said) == 1


def test_what_was_not_read_back_is_not_judged(build: Any, found: Any) -> None:
    run = build.alter_identity(build.run(), "oracle", version=None)
    assert found(looked(looked(run, "start", oracle={}), "end", oracle={}), CODE) == []
    assert found(dataclasses.replace(run, pins=()), CODE) == []


def test_an_oracle_that_was_not_to_be_the_pinned_one_is_not_judged(build: Any, found: Any) -> None:
    run = build.alter_identity(build.run(), "oracle", version="9")
    command = run.plan.model_copy(update={"oracle": run.plan.oracle.model_copy(update={"kind": "command"})})
    assert found(dataclasses.replace(run, plan=command), CODE) == []
    without = run.plan.model_copy(update={"pin": None})
    assert found(dataclasses.replace(run, plan=without), CODE) == []


def test_both_arms_of_an_aa_run_are_judged(build: Any, found: Any) -> None:
    run = build.alter_identity(build.run(), "oracle", version="9")
    run = build.alter_identity(run, "candidate", version="9")
    plan = run.plan.model_copy(update={"candidate": run.plan.candidate.model_copy(update={"kind": "vllm"})})
    assert {finding.arm for finding in found(dataclasses.replace(run, plan=plan), CODE)} == {"candidate", "oracle"}


def test_an_arm_without_an_identity_has_no_version(build: Any, found: Any) -> None:
    assert found(dataclasses.replace(build.run(), identities=()), CODE) == []


def test_the_pinned_one_is_not_named(build: Any, found: Any) -> None:
    """Its version is as pinned, whatever else differs."""
    run = looked(build.run(), "end", oracle_differs=("vllm/envs.py is changed, pinned as in its wheel",))
    assert found(build.run(), CODE) == []
    (finding,) = found(run, CODE)
    assert finding.message == "the oracle is not the pinned vLLM: vllm/envs.py is changed, pinned as in its wheel"
