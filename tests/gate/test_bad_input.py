"""Whatever lies in a results folder: each command answers in one line with a known code; no changed record passes."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gate import cli, shell
from gate import run as gate_run
from gate.errors import StorageError
from gate.observe import parquet, seals, store
from gate.observe.rows import LegRow, RequestRow
from gate.selftest.good_run import Build
from tests.gate.announcing import announce_as_it_is
from tests.gate.compare.conftest import keep_run
from tests.gate.observe.test_store import a_leg, a_plan, a_request

KNOWN = {0, 1, 2, 3, 64, 69}
NAME = "20260101"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and another to compare it with."""
    results = tmp_path_factory.mktemp("kept") / "results"
    run = Build.run(protocol={"concurrency": (1,), "repetitions": 2})
    keep_run(results, run, NAME, whole=True)
    keep_run(results, run, "20260102", whole=True)
    return results


@pytest.fixture(scope="module", autouse=True)
def nothing_starts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A run that lost its marker looks unfinished, and is resumed: up to where servers would be started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate_run, "measure", lambda *_: 0)
        patch.setattr(gate_run, "preflight", lambda *_: ())
        patch.setattr("gate.lock.keys", lambda _recipe: ("host",))
        patch.setenv("GATE_LOCK_DIR", str(tmp_path_factory.mktemp("locks")))
        yield


Answer = tuple[int, str]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    def asked(*words: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["gate", *words])
        capsys.readouterr()
        code = shell.run(cli.app, "gate")
        return code, capsys.readouterr().err

    return asked


def one_line(answer: Answer, *codes: int) -> None:
    code, said = answer
    assert code in codes, said
    assert "Traceback" not in said
    if code in (64, 69):
        assert len(said.splitlines()) == 1
        assert said.startswith("gate: ")


def mutate(data: bytes, draw: Callable[[st.SearchStrategy[Any]], Any]) -> bytes:
    """Bytes of a file, not as they were."""
    kind = draw(st.sampled_from(["flip", "cut", "insert", "empty", "foreign"]))
    at = draw(st.integers(0, max(len(data) - 1, 0)))
    if kind == "flip" and data:
        return data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :]
    if kind == "cut":
        return data[:at]
    if kind == "insert":
        return data[:at] + draw(st.binary(min_size=1, max_size=8)) + data[at:]
    return b"" if kind == "empty" else bytes(draw(st.binary(min_size=1, max_size=64)))


@pytest.mark.parametrize("finished", [True, False])
@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.reuse, Phase.generate],  # a run is too slow to shrink over, and its file's name tells enough
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_changed_file_is_never_taken_for_the_one_that_was_written(
    kept: Path, tmp_path: Path, ask: Callable[..., Answer], finished: bool, data: st.DataObject
) -> None:
    results = tmp_path / "results"
    shutil.rmtree(results, ignore_errors=True)
    shutil.copytree(kept, results)
    folder = results / "box" / NAME
    sealed = {seals.COMPLETE, *json.loads((folder / seals.COMPLETE).read_bytes())["sha256"]}
    if not finished:
        (folder / seals.COMPLETE).unlink()
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files), label="file")
    before = path.read_bytes()
    path.write_bytes(mutate(before, data.draw))
    changed = path.read_bytes() != before
    name, out = str(path.relative_to(folder)), ("--out", str(results))
    shown, compared = ask("show", NAME, *out), ask("compare", NAME, "20260102", *out)
    listed, resumed, reported = ask("list", *out), ask("resume", NAME, *out), ask("report", NAME, *out)
    one_line(listed, 0)
    for answer in (shown, compared, reported, resumed):
        one_line(answer, *KNOWN)
    if changed and name in sealed:
        assert (compared[0], reported[0], resumed[0]) == (69, 69, 69), name
    if changed and name == "report.json":
        assert shown[0] == 69


def foreign(kind: str, path: Path) -> None:
    plan = a_plan()
    leg = a_leg(plan, 0)
    rows = [a_request(leg)]
    if kind == "random bytes":
        path.write_bytes(bytes(range(256)) * 3)
    elif kind == "another tool's":
        pq.write_table(pa.table({"time": [1.0], "tokens": [2]}), path)
    elif kind == "wrong types":
        table = pq.read_table(pa.BufferReader(parquet.to_bytes(RequestRow, rows)))
        column = table.schema.get_field_index("index")
        pq.write_table(table.set_column(column, "index", pa.array(["0"])), path)
    elif kind == "no legs":
        path.with_name("legs.parquet").write_bytes(parquet.to_bytes(LegRow, []))
    elif kind == "another leg's":
        path.with_name("legs.parquet").write_bytes(parquet.to_bytes(LegRow, [a_leg(plan, 1)]))
    elif kind == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif kind == "a folder":
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("random bytes", "cannot be read as parquet"),
        ("another tool's", "holds nothing records; expected RequestRow written by gate"),
        ("wrong types", "index is string; expected int64"),
        ("no legs", "holds no leg; expected one row, of 000-oracle-c1-r0"),
        ("another leg's", "holds 001-candidate-c1-r0; expected one row, of 000-oracle-c1-r0"),
        ("truncated", "cannot be read as parquet"),
        ("a folder", "cannot be read"),
    ],
)
def test_foreign_parquet_that_was_announced_is_one_line(tmp_path: Path, kind: str, said: str) -> None:
    plan, place = a_plan(), store.Store(tmp_path / "host" / "run")
    place.create(plan, store.RunFile(run_id="run", host="host", started_at="2026-01-01"))
    leg = a_leg(plan, 0)
    place.append_leg(leg, [a_request(leg)], [])
    foreign(kind, place.folder / "legs" / leg.leg_id / "requests.parquet")
    announce_as_it_is(place.folder)
    with pytest.raises(StorageError, match=said) as caught:
        store.read_run(place.folder)
    assert "\n" not in str(caught.value)


HALF = ("plan.json", "run.json", "identities.json", "complete.json", "report.json", "records.sha256", "report.sha256")


@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize("left", ["half", "nothing"])
def test_a_half_written_file_of_each_kind_is_one_line(
    kept: Path, tmp_path: Path, ask: Callable[..., Answer], name: str, left: str
) -> None:
    results = tmp_path / "results"
    shutil.copytree(kept, results)
    path = results / "box" / NAME / name
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if left == "half" else b"")
    out = ("--out", str(results))
    one_line(ask("list", *out), 0)
    for words in (("show", NAME), ("resume", NAME), ("report", NAME)):
        one_line(ask(*words, *out), *KNOWN)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_results_folder_of_another_schema_version_is_one_line(
    kept: Path, tmp_path: Path, ask: Callable[..., Answer], version: object
) -> None:
    results = tmp_path / "results"
    shutil.copytree(kept, results)
    path = results / "box" / NAME / "plan.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"schema_version": version}))
    for words in (("resume", NAME), ("report", NAME), ("compare", NAME, "20260102")):
        answer = ask(*words, "--out", str(results))
        one_line(answer, 69)
        assert f"has schema version {version!r}; expected 1, which this gate reads" in answer[1]


@pytest.mark.parametrize("words", [("list",), ("show",), ("report",), ("resume",)])
def test_a_results_path_that_is_a_file_holds_no_runs(
    tmp_path: Path, ask: Callable[..., Answer], words: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    one_line(ask(*words, "--out", str(tmp_path / "file")), 0 if words == ("list",) else 64)


def test_a_run_is_found_from_inside_its_folder(
    kept: Path, ask: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(kept / "box" / NAME)
    one_line(ask("show", "."), 0)
    answer = ask("resume", ".")
    one_line(answer, 64)
    assert f"{NAME} is complete" in answer[1]
