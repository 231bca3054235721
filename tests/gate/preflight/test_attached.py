"""Attached servers: looked at before anything is started, and refused in a line that says how to start them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gate.arm.fake import FakeServer
from gate.arm.fake_script import Script
from gate.errors import ArmError
from gate.inputs import Asked, plan_for
from gate.plan import Plan
from gate.preflight import CHECKS, attached, checkpoint, oracle

RECIPE = """
schema_version = 1
name = "attached"
gpu = false
max_model_len = 512
kv_cache_dtype = "bfloat16"
[checkpoint]
path = "{checkpoint}"
[workload]
prompt_tokens = 12
output_tokens = 6
[protocol]
concurrency = [1]
repetitions = 2
[oracle]
kind = "serve {{port}}"
platform = "cpu"
"""


def plan(folder: Path, checkpoint: Path, url: str) -> Plan:
    path = folder / "attached.toml"
    path.write_text(RECIPE.format(checkpoint=checkpoint), encoding="utf-8")
    return plan_for(Asked(recipe=str(path), candidate=url))


@pytest.mark.parametrize(
    ("context", "dtype", "flags"),
    [
        (4096, "bfloat16", "--max-model-len 512"),
        (512, "fp8", "--kv-cache-dtype bfloat16"),
        (256, "fp8_e4m3", "--kv-cache-dtype bfloat16 --max-model-len 512"),
    ],
)
def test_other_limits_are_refused_with_the_flags_to_start_it_with(
    tmp_path: Path, tiny_checkpoint: Path, context: int, dtype: str, flags: str
) -> None:
    with (
        FakeServer(Script(max_model_len=context, kv_cache_dtype=dtype)) as server,
        pytest.raises(ArmError, match=f"the candidate at {server.url} runs with") as refused,
    ):
        attached.check(plan(tmp_path, tiny_checkpoint, server.url), tmp_path)
    assert refused.value.hint == f"start it with {flags}"
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("dtype", ["bfloat16", "torch.bfloat16", "auto"])
def test_equal_or_unreported_limits_pass(tmp_path: Path, tiny_checkpoint: Path, dtype: str) -> None:
    with FakeServer(Script(max_model_len=512, kv_cache_dtype=dtype)) as server:
        assert attached.check(plan(tmp_path, tiny_checkpoint, server.url), tmp_path) == ()


def test_nobody_there_is_found_before_the_oracle_is_looked_at(tmp_path: Path, tiny_checkpoint: Path) -> None:
    with pytest.raises(ArmError, match=r"no answer from the candidate at .*expected a ready server"):
        attached.check(plan(tmp_path, tiny_checkpoint, "http://127.0.0.1:9"), tmp_path)
    order = list(CHECKS)
    assert order.index(attached.check) < min(order.index(checkpoint.check), order.index(oracle.check))
