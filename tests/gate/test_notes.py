"""What stands beside the verdict: memory at unequal KV capacity, and memory that the driver does not tell."""

from __future__ import annotations

import dataclasses
from typing import Any

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
    held = {"page_cache": "partly", "checkpoint_files_bytes": 1000, "checkpoint_resident_bytes": 972}
    some = judge(dataclasses.replace(build.run(), starts=(starts[1].model_copy(update=held),)))
    assert str(table.start_text(some)).endswith("checkpoint partly in the page cache (97.2 %)")
