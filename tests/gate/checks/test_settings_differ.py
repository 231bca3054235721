"""settings-differ: the effective settings of both servers, key by key."""

from __future__ import annotations

from typing import Any

import pytest

from gate.checks.settings_differ import differences
from gate.judge import judge
from gate.observe.settings import FREE, SETTINGS
from gate.recipe import Protocol

CODE = "settings-differ"
OTHER = {
    "max_num_seqs": ("log.max_num_seqs", "16"),
    "dtype": ("log.dtype", "torch.float16"),
    "quantization": ("log.quantization", "fp8"),
    "speculative_config": ("log.speculative_config", "SpeculativeConfig(method='mtp', num_spec_tokens=1)"),
    "tensor_parallel_size": ("log.tensor_parallel_size", "2"),
    "pipeline_parallel_size": ("log.pipeline_parallel_size", "2"),
    "data_parallel_size": ("log.data_parallel_size", "2"),
    "mamba_ssm_cache_dtype": ("config.mamba_ssm_cache_dtype", "bfloat16"),
    "sampling_defaults": ("log.sampling_defaults", "{'repetition_penalty': 1.05, 'top_k': 20}"),
    "scheduling_policy": ("log.scheduling_policy", "priority"),
    "enable_chunked_prefill": ("log.enable_chunked_prefill", "False"),
    "max_num_batched_tokens": ("log.max_num_batched_tokens", "8192"),
}


def said(build: Any, run: Any, arm: str, **extra: str) -> Any:
    identity = next(one for one in run.identities if one.arm == arm)
    return build.alter_identity(run, arm, extra=identity.extra | {k.replace("__", "."): v for k, v in extra.items()})


@pytest.mark.parametrize("name", [setting.name for setting in SETTINGS if setting.equal])
def test_each_key_that_must_be_equal(build: Any, found: Any, name: str) -> None:
    key, value = OTHER[name]
    (finding,) = found(said(build, build.run(), "oracle", **{key: value}))
    assert (finding.code, finding.arm, finding.leg_id, finding.axis) == (CODE, None, None, None)
    assert finding.message.startswith(f"{name} is ")


@pytest.mark.parametrize("name", FREE)
def test_each_key_that_may_differ_is_told_unless_the_recipe_names_it(build: Any, found: Any, name: str) -> None:
    key, value = OTHER[name]
    silent = said(build, build.run(), "oracle", **{key: value})
    assert found(silent) == []
    assert [r for r in judge(silent).not_binding_because if r.startswith(f"{name} is ") and "may_differ" in r]
    declared = said(build, build.run(protocol={"may_differ": (name,)}), "oracle", **{key: value})
    assert found(declared) == []
    assert not [r for r in judge(declared).not_binding_because if r.startswith(f"{name} is ")]


def test_the_recipe_can_name_exactly_those() -> None:
    (names,) = [a for a in Protocol.model_fields["may_differ"].annotation.__args__ if a is not Ellipsis]
    assert names.__args__ == FREE
    assert set(OTHER) == {setting.name for setting in SETTINGS}


@pytest.mark.parametrize("arm", ["candidate", "oracle"])
@pytest.mark.parametrize("name", [setting.name for setting in SETTINGS])
def test_unknown_is_no_fault_but_is_told(build: Any, found: Any, arm: str, name: str) -> None:
    run = build.run()
    identity = next(one for one in run.identities if one.arm == arm)
    lacking = {k: v for k, v in identity.extra.items() if not k.endswith(f".{name}")}
    if name == "quantization":  # the candidate's is in its manifest
        lacking["manifest"] = '{"source_sha256": "s1"}'
    run = build.alter_identity(run, arm, extra=lacking)
    assert found(run) == []
    assert f"the {arm} does not report {name}" in judge(run).not_binding_because


def test_a_good_run_knows_every_setting(build: Any) -> None:
    assert not [reason for reason in judge(build.run()).not_binding_because if "report" in reason]


def test_several_are_one_finding(build: Any, found: Any) -> None:
    run = said(build, build.run(), "oracle", **{"log.dtype": "torch.float16", "log.max_num_seqs": "8"})
    (finding,) = found(run)
    assert "max_num_seqs is 32 in the candidate, 8 in the oracle; dtype is bfloat16" in finding.message


def test_an_arm_without_an_identity_has_no_settings(build: Any) -> None:
    assert differences(None, build.run().identities[1], equal=True) == {}
