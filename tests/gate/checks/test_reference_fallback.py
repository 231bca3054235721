"""reference-fallback: on a GPU an engine runs kernels, on the GPU, from packed weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.reference_fallback import fallbacks
from tests.gate.checks.test_engine_stale import made_of


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ({"device": "cpu"}, "its device is cpu"),
        ({"reference_ops": ["gdn", "moe"]}, "gdn, moe ran on the reference"),
        ({"dequantised_copy_bytes": 1}, "keeps 1 bytes of dequantised weights"),
        (
            {"kernel_build": {"flags": ["-O3", "-DTRIAL"]}},
            "its kernels were compiled with -DTRIAL, expected no definition",
        ),
    ],
)
def test_each_way_to_fall_back(build: Any, found: Any, manifest: Any, said: str) -> None:
    (finding,) = found(made_of(build, build.run(), **manifest))
    assert (finding.code, finding.arm) == ("reference-fallback", "candidate")
    assert said in finding.message


def test_kernels_for_a_gpu_that_is_not_here(build: Any, found: Any) -> None:
    run = made_of(build, build.run(), kernel_build={"arch": "sm_121a", "flags": []})
    here = dataclasses.replace(run, machine={**run.machine, "compute_capability_gpu0": "9.0"})
    (finding,) = found(here)
    assert (finding.code, finding.arm) == ("reference-fallback", "candidate")
    assert "its kernels were compiled for sm_121a, expected compute capability 9.0" in finding.message
    assert found(run) == []  # NVML did not tell


def test_a_processor_run_is_all_reference(build: Any, found: Any) -> None:
    run = made_of(build, build.run(gpu=False), device="cpu", reference_ops=["gdn"], dequantised_copy_bytes=9)
    assert found(run) == []


def test_what_is_not_reported_is_not_judged(build: Any, found: Any) -> None:
    assert found(made_of(build, build.run(), device=None, reference_ops=None, dequantised_copy_bytes=None)) == []


def test_an_arm_without_an_identity_has_no_manifest(build: Any, found: Any) -> None:
    assert found(dataclasses.replace(build.run(), identities=()), "reference-fallback") == []


def test_a_manifest_of_a_production_path_lists_nothing() -> None:
    """Any CUDA device; no op on a reference; no byte dequantised."""
    assert fallbacks({"device": "cuda:1", "reference_ops": [], "dequantised_copy_bytes": 0}, {}) == []
    assert fallbacks({"device": "mps"}, {}) == ["its device is mps, expected cuda"]
    assert fallbacks({"dequantised_copy_bytes": 1}, {}) == ["it keeps 1 bytes of dequantised weights, expected 0"]


@pytest.mark.parametrize(
    "built", [None, "x", {}, {"flags": None}, {"flags": "-DTRIAL"}, {"flags": ["-O3", "-lineinfo"]}]
)
def test_kernels_as_they_ship_are_no_fallback(built: Any) -> None:
    assert fallbacks({"kernel_build": built}, H200) == []


H200 = {"compute_capability_gpu0": "9.0", "gpu0": "NVIDIA H200"}


@pytest.mark.parametrize(
    ("arch", "machine", "told"),
    [
        ("sm_90a", H200, 0),
        ("sm_121a", H200, 1),
        ("sm_90", H200, 0),
        ("sm_9", H200, 1),
        ("sm_121a", {"compute_capability_gpu0": "12.1"}, 0),
        ("sm_121a", {**H200, "compute_capability_gpu1": "12.1"}, 0),  # any card's: the engine names no card by its UUID
        ("sm_100a", {**H200, "compute_capability_gpu1": "12.1"}, 1),
        ("sm_121a", {"gpu0": "NVIDIA H200"}, 0),
        ("someday", H200, 0),
        (None, H200, 0),
        (90, H200, 0),
    ],
)
def test_the_architecture_is_a_gpus_of_this_machine(arch: Any, machine: dict[str, str], told: int) -> None:
    assert len(fallbacks({"kernel_build": {"arch": arch}}, machine)) == told


def test_each_fallback_of_one_engine_is_told() -> None:
    assert len(fallbacks({"device": "cpu", "reference_ops": ["gdn"], "dequantised_copy_bytes": 2}, {})) == 3
