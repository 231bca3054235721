"""What keeps a grid from binding where memory decides: unequal KV capacity, or an oracle starved of it."""

from __future__ import annotations

from typing import Any

import pytest

from gate.judge import judge
from gate.observe.rundata import RunData
from gate.units import GIB


def holding(build: Any, run: RunData, candidate: int, oracle: int) -> RunData:
    for arm, tokens in (("candidate", candidate), ("oracle", oracle)):
        run = build.alter_identity(run, arm, extra={"config.kv_cache_size_tokens": str(tokens)})
    return run


def with_memory(build: Any, run: RunData) -> RunData:
    for row in run.legs:
        run = build.alter_leg(run, row.leg_id, gpu_peak_bytes=GIB)
    return run


@pytest.mark.parametrize(("primary", "binds"), [(("output_throughput",), True), (("peak_gpu_bytes",), False)])
def test_it_keeps_a_grid_from_binding_where_memory_decides(build: Any, primary: tuple[str, ...], binds: bool) -> None:
    run = build.run(protocol={"primary": primary})
    report = judge(with_memory(build, holding(build, run, 1000, 8000)))
    assert any("KV capacities differ" in why for why in report.not_binding_because) is not binds


@pytest.mark.parametrize(
    ("kv_cache_bytes", "tokens", "preempted", "said"),
    [
        (None, 100, 3, ()),
        (2**30, 2048, 0, ()),
        (2**30, 2047, 0, ("the recipe leaves the oracle 2047 tokens of KV cache",)),
        (2**30, 2048, 3, ("the oracle pre-empted 3 requests",)),
    ],
)
def test_a_recipe_must_not_starve_the_oracle(
    build: Any, kv_cache_bytes: int | None, tokens: int, preempted: int, said: tuple[str, ...]
) -> None:
    """max_num_seqs 32 × max_model_len 64 are 2,048 tokens."""
    run = holding(build, build.run(oracle={"kv_cache_bytes": kv_cache_bytes}), 2048, tokens)
    if preempted:
        run = build.alter_leg(run, build.leg_id(run, "oracle"), preemptions=preempted)
    told = [why for why in judge(run).not_binding_because if "KV cache, fewer" in why or "pre-empted" in why]
    assert [why.startswith(begin) for why, begin in zip(told, said, strict=True)] == [True] * len(said)
