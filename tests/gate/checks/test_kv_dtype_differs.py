"""kv-dtype-differs: equal bytes per cached token, as far as both arms say."""

from __future__ import annotations

from typing import Any

import pytest


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
