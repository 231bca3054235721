"""kv-dtype-differs: equal bytes per cached token, as far as both arms say."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.checks.kv_dtype_differs import resolved


@pytest.mark.parametrize(("ours", "theirs"), [("bfloat16", "fp8"), ("fp8_e5m2", "fp8"), ("BF16", "fp8_e4m3")])
def test_different_dtypes_void_the_run(build: Any, found: Any, ours: str, theirs: str) -> None:
    run = build.alter_identity(build.run(), "candidate", kv_cache_dtype=ours)
    (finding,) = found(build.alter_identity(run, "oracle", kv_cache_dtype=theirs))
    assert finding.code == "kv-dtype-differs"
    assert f"candidate {ours}, oracle {theirs}" in finding.message


@pytest.mark.parametrize(
    ("ours", "theirs"), [("bf16", "bfloat16"), ("fp8", "fp8_e4m3"), ("auto", "fp8"), (None, "fp8"), ("auto", "auto")]
)
def test_equal_or_unknown_dtypes_are_silent(build: Any, found: Any, ours: str | None, theirs: str) -> None:
    run = build.alter_identity(build.run(), "candidate", kv_cache_dtype=ours)
    assert found(build.alter_identity(run, "oracle", kv_cache_dtype=theirs), "kv-dtype-differs") == []


@pytest.mark.parametrize(
    ("said", "dtype"),
    [
        ("bf16", "bfloat16"),
        ("torch.bfloat16", "bfloat16"),
        ("fp8_e4m3", "fp8"),
        ("torch.float8_e4m3fn", "fp8"),
        ("float8_e4m3fn", "fp8"),
        ("FP8_E5M2", "fp8_e5m2"),
        ("auto", None),
        (None, None),
    ],
)
def test_every_spelling_of_a_dtype_is_one(said: str | None, dtype: str | None) -> None:
    assert resolved(said) == dtype


@pytest.mark.parametrize("unknown", ["candidate", "oracle"])
def test_either_arm_may_not_say(build: Any, found: Any, unknown: str) -> None:
    """Nor does an arm without an identity; arms-not-as-planned says that."""
    known = "oracle" if unknown == "candidate" else "candidate"
    run = build.alter_identity(build.run(), known, kv_cache_dtype="fp8")
    assert found(build.alter_identity(run, unknown, kv_cache_dtype=None), "kv-dtype-differs") == []
    theirs = tuple(identity for identity in run.identities if identity.arm == known)
    assert found(dataclasses.replace(run, identities=theirs), "kv-dtype-differs") == []
