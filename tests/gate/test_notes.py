"""What stands beside the verdict: memory at unequal KV capacity, and memory that the driver does not tell."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gate.judge import judge
from gate.observe.rows import StartRow
from gate.observe.rundata import RunData
from gate.report import html, markdown, table, terminal
from gate.units import GIB


def holding(build: Any, run: RunData, candidate: int, oracle: int) -> RunData:
    for arm, tokens in (("candidate", candidate), ("oracle", oracle)):
        run = build.alter_identity(run, arm, extra={"config.kv_cache_size_tokens": str(tokens)})
    return run


def with_memory(build: Any, run: RunData) -> RunData:
    for row in run.legs:
        run = build.alter_leg(run, row.leg_id, gpu_peak_bytes=GIB)
    return run


def test_unequal_capacity_is_a_note_and_voids_nothing(build: Any) -> None:
    report = judge(with_memory(build, holding(build, build.run(), 1000, 8000)))
    assert report.notes == (
        "KV capacities differ (candidate 1000 tokens, oracle 8000 tokens): memory is not compared at equal capacity",
    )
    assert report.exit_code == 0
    assert (report.candidate.kv_capacity_tokens, report.oracle.kv_capacity_tokens) == (1000, 8000)
    for text in (html.render(report), markdown.render(report), terminal.render(report)):
        assert "memory is not compared at equal capacity" in " ".join(text.split())
        assert "oracle 8000 tokens of bfloat16" in text


@pytest.mark.parametrize(("primary", "binds"), [(("output_throughput",), True), (("peak_gpu_bytes",), False)])
def test_it_keeps_a_grid_from_binding_where_memory_decides(build: Any, primary: tuple[str, ...], binds: bool) -> None:
    run = build.run(protocol={"primary": primary})
    report = judge(with_memory(build, holding(build, run, 1000, 8000)))
    assert any("KV capacities differ" in why for why in report.not_binding_because) is not binds


def test_equal_and_unknown_capacities_are_no_note(build: Any) -> None:
    assert judge(with_memory(build, holding(build, build.run(), 1000, 1000))).notes == ()
    report = judge(with_memory(build, build.run()))
    assert (report.notes, table.capacity_text(report)) == ((), None)


def test_without_a_memory_axis_there_is_nothing_to_note(build: Any) -> None:
    assert judge(holding(build, build.run(), 1000, 8000)).notes == ()


def test_a_silent_driver_is_named_on_a_gpu(build: Any) -> None:
    run = build.run()
    for row in run.legs:
        run = build.alter_leg(run, row.leg_id, server_peak_rss_bytes=GIB)
    (note,) = judge(run).notes
    assert note.startswith("the driver gives no memory by process for the candidate and the oracle")
    cpu = build.run(gpu=False)
    for row in cpu.legs:
        cpu = build.alter_leg(cpu, row.leg_id, server_peak_rss_bytes=GIB)
    assert judge(cpu).notes == ()


def test_the_last_start_of_each_arm_is_told_with_its_page_cache(build: Any) -> None:
    starts = (
        StartRow(arm="candidate", start_id="1", started_at="x", repetition=0, spawn_ns=0, ready_ns=9 * 10**9),
        StartRow(
            arm="candidate",
            start_id="2",
            started_at="x",
            repetition=1,
            spawn_ns=10**9,
            port_open_ns=2 * 10**9,
            ready_ns=3 * 10**9,
            page_cache="warm",
        ),
    )
    report = judge(dataclasses.replace(build.run(), starts=starts))
    assert table.start_text(report) == "candidate 2.0 s to ready, its port open after 1.0 s, checkpoint warm"
    assert (len(report.candidate.starts), report.oracle.starts) == (2, ())
    assert table.start_text(judge(build.run())) is None


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
