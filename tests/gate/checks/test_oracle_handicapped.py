"""oracle-handicapped: the denominator runs with its production settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.gate.checks.test_settings_differ import said

CODE = "oracle-handicapped"
SLOW = (
    "PYTHONASYNCIODEBUG",
    "PYTHONDEVMODE",
    "TORCHDYNAMO_DISABLE",
    "TORCH_COMPILE_DISABLE",
    "TORCH_LOGS",
    "VLLM_COMPUTE_NANS_IN_LOGITS",
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE",
    "VLLM_TORCH_PROFILER_DIR",
    "VLLM_TRACE_FUNCTION",
)


def planned(run: Any, arm: str, **changes: Any) -> Any:
    changed = run.plan.arm(arm).model_copy(update=changes)
    return dataclasses.replace(run, plan=run.plan.model_copy(update={arm: changed}))


@pytest.mark.parametrize(
    ("key", "value"),
    [("log.enforce_eager", "True"), ("log.cudagraph_mode", "NONE"), ("log.compilation_mode", "NONE")],
)
def test_eager_on_a_gpu(build: Any, found: Any, key: str, value: str) -> None:
    (finding,) = found(said(build, build.run(), "oracle", **{key: value}))
    assert (finding.code, finding.arm) == (CODE, "oracle")
    assert f"{key.removeprefix('log.')} is {value}" in finding.message
    assert found(said(build, build.run(gpu=False), "oracle", **{key: value})) == []
    assert found(said(build, build.run(), "candidate", **{key: value})) == []


def test_eager_on_the_command_line(build: Any, found: Any) -> None:
    argv = ("vllm", "serve", "--enforce-eager")
    (finding,) = found(planned(build.run(), "oracle", argv=argv))
    assert (finding.code, finding.arm) == (CODE, "oracle")
    assert found(planned(build.run(gpu=False), "oracle", argv=argv)) == []
    assert found(planned(build.run(), "oracle", argv=None)) == []


@pytest.mark.parametrize("gpu", [True, False])
def test_a_profiler_slows_any_machine(build: Any, found: Any, gpu: bool) -> None:
    (finding,) = found(said(build, build.run(gpu=gpu), "oracle", **{"log.profiler": "torch"}))
    assert "a torch profiler is armed" in finding.message


@pytest.mark.parametrize(
    ("name", "value", "faults"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", 1),
        ("CUDA_LAUNCH_BLOCKING", "0", 0),
        ("CUDA_LAUNCH_BLOCKING", "", 0),
        ("VLLM_LOGGING_LEVEL", "DEBUG", 1),
        ("VLLM_LOGGING_LEVEL", "INFO", 0),
        ("TORCH_DISTRIBUTED_DEBUG", "OFF", 0),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", 1),
        ("PYTHONDEVMODE", "false", 0),
        ("PYTHONDEVMODE", "False", 0),
        ("SOMETHING_ELSE", "1", 0),
        *((name, "1", 1) for name in SLOW),
    ],
)
def test_variables_that_slow(build: Any, found: Any, name: str, value: str, faults: int) -> None:
    made = found(planned(build.run(), "oracle", env={"PATH": "/usr/bin", name: value}), CODE)
    assert [f"{name} is {value}" in finding.message for finding in made] == [True] * faults


def test_the_candidates_own_variables_are_its_own_loss(build: Any, found: Any) -> None:
    assert found(planned(build.run(), "candidate", env={"CUDA_LAUNCH_BLOCKING": "1"})) == []


def test_an_oracle_that_said_nothing(build: Any, found: Any) -> None:
    assert found(build.alter_identity(build.run(), "oracle", extra={}), CODE) == []


def test_an_oracle_without_an_identity_has_its_command_line_alone(build: Any, found: Any) -> None:
    run = dataclasses.replace(build.run(), identities=())
    assert found(run, CODE) == []
    (finding,) = found(planned(run, "oracle", argv=("--enforce-eager",)), CODE)
    assert "held back: --enforce-eager; expected" in finding.message
