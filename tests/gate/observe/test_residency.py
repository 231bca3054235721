"""What a server holds, by its own word: the engine's manifest, vLLM's log, and nothing made up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gate.observe import serverlog
from gate.observe.residency import build, residency
from gate.observe.rows import Identity
from gate.report.model import Build, Residency


def identity(**extra: str) -> Identity:
    return Identity(
        arm="oracle",
        version="1",
        model="m",
        max_model_len=9,
        prefix_caching=False,
        kv_cache_dtype=None,
        extra=extra,
        digest="d",
    )


def test_the_engines_census() -> None:
    made_of = {"shipped_bytes": 10, "resident_bytes": 12, "dequantised_copy_bytes": 0, "widened_modules": ["a"]}
    assert residency(identity(manifest=json.dumps({**made_of, "reference_ops": ["gdn"]}))) == Residency(
        shipped_bytes=10, resident_bytes=12, copy_bytes=0, widened=("a",), reference_ops=("gdn",)
    )


def test_what_was_compiled_is_not_what_ran() -> None:
    said = residency(identity(manifest=json.dumps({"kernels": ["gdn/scan", "moe/kernel"]})))
    assert said == Residency(compiled=("gdn/scan", "moe/kernel"))


@pytest.mark.parametrize(("called", "ran"), [(["gdn_scan"], ("gdn_scan",)), ([], None), (None, None)])
def test_what_was_called_ran(called: list[str] | None, ran: tuple[str, ...] | None) -> None:
    said = residency(identity(manifest=json.dumps({"kernels": ["gdn/scan"], "kernels_called": called})))
    assert said == Residency(compiled=("gdn/scan",), kernels=ran)


@pytest.mark.parametrize(
    ("made_of", "made"),
    [
        ({}, Build()),
        ({"source_sha256": "s", "kernel_build": None}, Build(source_sha256="s")),
        (
            {"source_sha256": "s", "kernel_build": {"source_sha256": "k", "arch": "sm_90a", "flags": []}},
            Build(source_sha256="s", kernel_source_sha256="k", kernel_arch="sm_90a"),
        ),
        ({"source_sha256": 7, "kernel_build": "x"}, Build()),
        ({"kernel_build": {"arch": ["sm_90a"], "source_sha256": None}}, Build()),
    ],
)
def test_which_build_answered(made_of: dict[str, Any], made: Build) -> None:
    assert build(made_of) == made


def test_vllms_log() -> None:
    log = """
(Worker pid=1) INFO 11-29 22:08:58 [x.py:1] Selected PerTensorTorchFP8ScaledMMLinearKernel for QKVParallelLinear
(Worker pid=1) INFO 11-29 22:08:58 [x.py:1] Selected PerTensorTorchFP8ScaledMMLinearKernel for QKVParallelLinear
(Worker pid=1) INFO 11-29 22:08:58 [x.py:1] Using FLASH_ATTN attention backend out of potential backends: ['A'].
(Worker pid=1) INFO 11-29 22:08:58 [x.py:1] Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['B'].
(Worker pid=1) INFO 11-29 22:08:58 [x.py:1] Using CPU GDN prefill kernel (head_k_dim=64).
(Worker pid=1) INFO 11-29 22:09:59 [x.py:1] Model loading took 0.5 GiB memory and 1.000000 seconds
"""
    logged = {f"log.{key}": value for key, value in serverlog.settings(log).items()}
    assert residency(identity(**logged)) == Residency(
        resident_bytes=2**29,
        kernels=(
            "CPU GDN prefill kernel",
            "FLASH_ATTN for attention backend",
            "MARLIN for NvFp4 MoE backend",
            "PerTensorTorchFP8ScaledMMLinearKernel for QKVParallelLinear",
        ),
    )


@pytest.mark.parametrize("extra", [{}, {"manifest": "null"}, {"manifest": "not json"}, {"log.weights_gib": "much"}])
def test_what_is_not_said_is_none(extra: dict[str, str]) -> None:
    assert residency(identity(**extra)) is None
    assert residency(None) is None


@pytest.mark.parametrize("value", [-1, True, "5", 1.5, None])
def test_a_count_that_is_none_is_none(value: Any) -> None:
    made_of = {"shipped_bytes": 7, "resident_bytes": value}
    assert residency(identity(manifest=json.dumps(made_of))) == Residency(shipped_bytes=7)
