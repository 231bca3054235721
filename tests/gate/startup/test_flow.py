"""`gate startup` with scripted servers: starts in turns, page cache proven, records on disk, nothing left running."""

from __future__ import annotations

import functools
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from gate import runs, shown
from gate.errors import ArmError, StorageError, UsageError
from gate.inputs import Asked
from gate.observe import pagecache, parquet
from gate.observe.rows import CacheState, StartRow, Verdict
from gate.progress import Ui
from gate.startup import flow
from gate.startup.record import StartupReport
from tests.gate.aside_reports import (
    changed_records_are_refused,
    changed_reports_are_refused,
    exit_code_is_kept_without_a_reader,
    lost_seals_are_told,
)
from tests.gate.bench import fake
from tests.ports import free_port

RECIPE = """
schema_version = 1
name = "fakes"
gpu = false
[checkpoint]
path = "{checkpoint}"
[workload]
prompt_tokens = 12
output_tokens = 6
[protocol]
concurrency = [1]
repetitions = 2
ready_timeout_s = 60
request_timeout_s = 30
[oracle]
platform = "cpu"
"""


@pytest.fixture
def checkpoint(tmp_path: Path, tiny_checkpoint: Path) -> Path:
    """A copy that no other test reads meanwhile: its pages would be in the cache again, or not let go of."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint"))


@pytest.fixture
def run(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GATE_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setattr(flow, "preflight", lambda _plan, _out: ())
    recipe = tmp_path / "fakes.toml"
    recipe.write_text(RECIPE.format(checkpoint=checkpoint), encoding="utf-8")

    def run_it(wanted: CacheState | None, candidate: str = fake(), oracle: str = fake()) -> tuple[int, Path]:
        asked = Asked(recipe=str(recipe), candidate=candidate, oracle=oracle, coin="candidate", port=free_port())
        code = flow.run(asked, wanted, tmp_path / "out", Ui())
        return code, next((tmp_path / "out").glob("*/startup/*"))

    return run_it


def evictable(folder: Path) -> bool:
    return pagecache.filesystem(folder.resolve()) not in pagecache.CACHES_OF_THEIR_OWN


def test_warm_starts_in_turns_each_with_a_first_token(run: Any, checkpoint: Path) -> None:
    if not evictable(checkpoint):
        pytest.skip(f"{checkpoint} is on a file system with a cache of its own")
    code, folder = run("warm")
    rows = parquet.read(StartRow, folder / "starts.parquet")
    assert [(row.arm, row.repetition) for row in rows] == [
        ("candidate", 0),
        ("oracle", 0),
        ("oracle", 1),
        ("candidate", 1),
    ]
    for row in rows:
        assert row.port_open_ns is not None
        assert row.ready_ns is not None
        assert row.first_token_ns is not None
        assert row.spawn_ns < row.port_open_ns <= row.ready_ns < row.first_token_ns
        assert (row.page_cache, row.wanted_cache, row.error) == ("warm", "warm", None)
    assert len({row.start_id for row in rows}) == 4
    made = StartupReport.model_validate_json((folder / "startup.json").read_bytes())
    assert made.starts == rows
    assert made.exit_code == code
    assert "checkpoint warm" in (folder / "startup.md").read_text()


def test_cold_starts_are_cold(run: Any, checkpoint: Path) -> None:
    if not evictable(checkpoint):
        pytest.skip(f"{checkpoint} is on a file system with a cache of its own")
    _, folder = run("cold")
    rows = parquet.read(StartRow, folder / "starts.parquet")
    assert {(row.page_cache, row.checkpoint_resident_bytes) for row in rows} == {("cold", 0)}


def test_cold_that_cannot_be_proven_is_void(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow.pagecache, "drop", flow.pagecache.read_in)
    code, folder = run("cold")
    made = StartupReport.model_validate_json((folder / "startup.json").read_bytes())
    assert (made.verdict, code) == (Verdict.VOID, 3)
    assert {value for cell in made.cells for value in (*cell.candidate_values, *cell.oracle_values)} == {None}


def test_a_first_request_that_is_refused_voids(run: Any) -> None:
    code, folder = run(None, candidate=fake("http-500"))
    assert code == 3
    made = StartupReport.model_validate_json((folder / "startup.json").read_bytes())
    # Of the page cache, which is as found here, the kernel may have taken a part between two starts.
    assert {finding.arm for finding in made.findings if finding.code == "start-failed"} == {"candidate"}


def test_a_server_that_dies_at_start_ends_it_and_the_starts_before_stay(run: Any, tmp_path: Path) -> None:
    with pytest.raises(ArmError, match="died at start") as caught:
        run(None, oracle=f"{sys.executable} -c raise(SystemExit(3)) {{port}}")
    (folder,) = (tmp_path / "out").glob("*/startup/*")
    assert [row.arm for row in parquet.read(StartRow, folder / "starts.parquet")] == ["candidate"]
    made = StartupReport.model_validate_json((folder / "startup.json").read_bytes())
    assert (made.unfinished, made.verdict, [start.arm for start in made.starts]) == (
        True,
        Verdict.INCONCLUSIVE,
        ["candidate"],
    )
    assert made.ended == str(caught.value)
    assert f"* unfinished: 1 of 4 starts were made: {caught.value}" in (folder / "startup.md").read_text()


def test_one_without_a_start_has_no_report_and_says_why(run: Any, tmp_path: Path) -> None:
    with pytest.raises(ArmError, match="died at start"):
        run(None, candidate=f"{sys.executable} -c raise(SystemExit(3)) {{port}}")
    for again in (shown.report, functools.partial(shown.show, every=False)):
        with pytest.raises(StorageError, match=r"nothing measured: the candidate died at start .* gate startup begins"):
            again(None, tmp_path / "out")


@pytest.mark.parametrize("after", [0, 3])
def test_ctrl_c_leaves_a_report_of_the_starts_before_it(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], after: int
) -> None:
    prepare, turns = flow._prepare, iter(range(9))

    def interrupted(*args: Any) -> pagecache.Residency:
        if next(turns) == after:
            raise KeyboardInterrupt
        return prepare(*args)

    monkeypatch.setattr(flow, "_prepare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(None)
    (folder,) = (tmp_path / "out").glob("*/startup/*")
    assert (folder / "startup.json").is_file() == (after > 0)
    if after:
        made = StartupReport.model_validate_json((folder / "startup.json").read_bytes())
        assert (len(made.starts), made.unfinished, made.verdict) == (3, True, Verdict.INCONCLUSIVE)
        assert {reason.hint for cell in made.cells for reason in cell.reasons} == {
            "gate startup begins anew: it is not resumed"
        }
        said = "unfinished: 3 of 4 starts were made: the run was interrupted\n"
        assert said in (folder / "startup.md").read_text()
        assert "INCONCLUSIVE, indicative, unfinished" in capsys.readouterr().out


def test_it_is_listed_shown_and_derived_again_as_it_was(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, folder = run(None)
    printed = capsys.readouterr().out
    (entry,) = runs.entries(tmp_path / "out")
    assert (entry.kind, entry.legs, entry.planned, entry.complete, entry.recipe) == ("startup", 4, 4, True, "fakes")
    shown.show(folder.name, tmp_path / "out", every=False)
    assert capsys.readouterr().out == printed
    before = (folder / "startup.json").read_bytes()
    (folder / "startup.json").unlink()
    assert shown.report(folder.name, tmp_path / "out") == code
    assert (folder / "startup.json").read_bytes() == before
    exit_code_is_kept_without_a_reader(folder.name, code, tmp_path / "out")
    changed_reports_are_refused(folder, "startup.json", tmp_path / "out")
    lost_seals_are_told(folder, "startup.json", tmp_path / "out", capsys)
    changed_records_are_refused(folder, tmp_path / "out")


def test_a_url_has_no_start(run: Any) -> None:
    with pytest.raises(UsageError, match="is an attached URL"):
        run(None, candidate="http://127.0.0.1:9")
