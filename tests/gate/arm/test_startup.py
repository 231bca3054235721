"""What a start leaves behind: stamps in order, page cache and memory before the spawn, and none of it for others."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from gate.arm import process, startup
from gate.arm.pair import Pair
from gate.observe import memory, pagecache
from gate.observe.rows import StartRow
from gate.observe.store import RunFile, Store, read_run
from gate.plan import ArmPlan, Plan, Vocabulary, make_plan
from gate.recipe import parse
from tests.ports import free_port


def arm_plan(checkpoint: Path, port: int, preset: str = "instant", arm: str = "candidate") -> ArmPlan:
    return ArmPlan.model_validate(
        {
            "arm": arm,
            "kind": "command",
            "argv": (sys.executable, "-m", "gate.arm.fake", "--port", str(port), "--preset", preset),
            "env": {"PATH": "/usr/bin:/bin"},
            "url": f"http://127.0.0.1:{port}",
            "model": "",
            "checkpoint": str(checkpoint),
            "checkpoint_digest": None,
        }
    )


def plan_of(checkpoint: Path, residency: str) -> Plan:
    recipe = parse(
        {
            "schema_version": 1,
            "name": "small",
            "gpu": False,
            "checkpoint": {"path": str(checkpoint)},
            "workload": {"prompt_tokens": 8, "output_tokens": 4},
            "protocol": {"concurrency": [1], "repetitions": 2, "residency": residency, "ready_timeout_s": 60.0},
        },
        "t",
    )
    candidate, oracle = (arm_plan(checkpoint, free_port(), arm=arm) for arm in ("candidate", "oracle"))
    return make_plan(
        recipe, coin="candidate", seed=0, candidate=candidate, oracle=oracle, vocabulary=Vocabulary(size=99)
    )


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"w" * 9000)
    return folder


def test_a_start_is_stamped_and_the_host_before_it_is_known(tmp_path: Path, checkpoint: Path) -> None:
    plan = arm_plan(checkpoint, free_port())
    pagecache.read_in(pagecache.files_of(checkpoint))
    before = startup.look(plan, ())
    server = process.launch(plan, tmp_path / "log", 60)
    try:
        row = startup.row("candidate", server, before, 3)
    finally:
        server.stop()
    assert row.port_open_ns is not None
    assert row.ready_ns is not None
    assert row.spawn_ns < row.port_open_ns <= row.ready_ns
    assert (row.arm, row.repetition, row.start_id, row.first_token_ns) == ("candidate", 3, server.start_id, None)
    assert (row.page_cache, row.checkpoint_files_bytes) == ("warm", row.checkpoint_resident_bytes)
    assert row.checkpoint_files_bytes == 12288
    assert row.available_before_bytes == before.available_bytes
    assert row.load_peak_rss_bytes is not None
    assert row.load_peak_rss_bytes > 2**20


def test_the_port_is_stamped_once_and_readiness_when_it_comes(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(100, 100)
    healthy = iter([False, False, True])
    monkeypatch.setattr(process, "answers", lambda _url: next(healthy))
    monkeypatch.setattr(process.time, "perf_counter_ns", lambda: next(clock))
    server = process.launch(arm_plan(checkpoint, free_port()), tmp_path / "log", 60)
    server.stop()
    stamps = server.stamps
    assert stamps.port_open_ns is not None
    assert stamps.ready_ns == stamps.port_open_ns + 100


def test_what_a_start_adds_to_the_gpus_is_their_use_at_ready_less_that_before(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = {("GPU-b",): iter([1000, 5000])}
    monkeypatch.setattr(startup, "used_bytes", lambda cards: next(readings[cards]))
    plan = arm_plan(checkpoint, free_port())
    before = startup.look(plan, ("GPU-b",))
    server = process.launch(plan, tmp_path / "log", 60)
    server.stop()
    assert startup.row("candidate", server, before, 0).gpu_growth_bytes == 4000


def test_without_a_gpu_nothing_was_added(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "used_bytes", lambda _cards: None)
    assert startup.look(arm_plan(checkpoint, 1), ()).gpu_used_bytes is None


def test_a_folder_that_cannot_be_looked_at_leaves_the_page_cache_unknown(tmp_path: Path) -> None:
    assert startup.look(arm_plan(tmp_path / "nowhere", 1), ()).cache is None


@pytest.mark.parametrize(("residency", "alone"), [("both", False), ("alternate", True)])
def test_a_pair_reports_each_start_and_the_memory_before_it_while_it_is_alone(
    tmp_path: Path, checkpoint: Path, residency: str, alone: bool
) -> None:
    plan = plan_of(checkpoint, residency)
    seen: list[StartRow] = []
    with Pair(plan, tmp_path, lambda _text: None, note_start=seen.append) as pair:
        pair.ready(plan.legs[0])
        assert (pair.available_before_bytes("candidate") is not None) is alone
        assert (seen[0].available_before_bytes == pair.available_before_bytes("candidate")) is alone
        pair.ready(plan.legs[1])
        assert pair.available_before_bytes("candidate") is None
    assert [row.arm for row in seen] == ["candidate", "oracle"]


def test_starts_are_kept_in_order_and_a_run_without_them_has_none(tmp_path: Path, checkpoint: Path) -> None:
    plan, place = plan_of(checkpoint, "both"), Store(tmp_path / "run")
    place.create(plan, RunFile(run_id="r", host="h", started_at="2026-01-01T00:00:00+00:00"))
    assert read_run(place.folder).starts == ()
    rows = [
        StartRow(arm=arm, start_id=str(k), started_at="x", repetition=k, spawn_ns=k)
        for k, arm in enumerate(("oracle", "candidate"))
    ]
    for row in rows:
        place.append_start(row)
    assert read_run(place.folder).starts == tuple(rows)


def test_own_peaks_of_a_tree_that_is_gone_are_unknown() -> None:
    assert memory.own_peaks_bytes(()) is None
