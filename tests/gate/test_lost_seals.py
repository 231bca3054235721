"""A seal that was written and is gone: each reader of a run says so in one line, and none takes the run as accepted."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gate import cli, listing, runs, shell, shown
from gate.calibration import history
from gate.compare import baseline
from gate.compare.comparison import compare
from gate.conclude import conclude, stored
from gate.errors import StorageError
from gate.observe import digests, kinds, seals, store
from gate.profile.store import ProfileFile
from gate.recipe import ROOT
from gate.selftest.good_run import Build
from gate.startup.record import StartupPlan
from gate.sweep.record import SweepPlan
from tests.gate.aside_reports import lost_seals_are_told
from tests.gate.compare.conftest import keep_run
from tests.gate.compare.test_comparison import ahead
from tests.gate.profile.test_conclude import data

OLDER = {
    *("20261129T220444Z-tiny-58320bb9", "20261129T220833Z-tiny-58320bb9"),
    *("20261129T221142Z-tiny-1976586b", "20261129T221618Z-tiny-c6c07b3e"),
    "20261130T063951Z-qwen3.6-35b-a3b-nvfp4-synthetic-profile-4e8402b5",
    "20261130T092924Z-qwen3.6-27b-nvfp4-synthetic-profile-af7a819e",
}
"""In results/, of versions that sealed nothing."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two accepted runs, each with its report: the second is the newer."""
    results = tmp_path_factory.mktemp("kept") / "results"
    run = Build.run(ahead(0.2), protocol={"concurrency": (1,), "repetitions": 2})
    for name in ("20260101", "20260102"):
        keep_run(results, run, name, whole=True)
    return results


@pytest.fixture
def results(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "results"))


@pytest.fixture
def newer(results: Path) -> Path:
    return results / "box" / "20260102"


def unseal(folder: Path) -> None:
    """As versions before the seals left it."""
    path = folder / seals.COMPLETE
    path.write_text(
        json.dumps({name: value for name, value in json.loads(path.read_bytes()).items() if name != "seal"})
    )
    for name in (digests.RECORDS, digests.REPORT):
        (folder / name).unlink(missing_ok=True)


def accepted(folder: Path) -> tuple[str | None, list[str]]:
    """The last accepted grid of the host, and what was said of the others."""
    said: list[str] = []
    run = store.read_run(folder.with_name("20260101"))
    found = baseline.last_accepted(folder.parent, run.plan, run.machine, said.append)
    return None if found is None else found.run_id, said


def test_a_run_is_shown_and_listed_only_with_both(newer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(newer.with_name("20260101"))
    lost_seals_are_told(newer, "report.json", newer.parents[1], capsys)
    assert stored(newer).verdict == "PASS"


LOST = {
    digests.REPORT: r"report\.json has no seal: report\.sha256 is missing; expected the digest that was noted when "
    r"it was written; gate report 20260102 derives it again",
    digests.RECORDS: r"records\.sha256 is missing; expected the digests that were noted before each record was "
    r"written; restore it, or measure again",
}


def test_a_record_changed_beneath_its_report_is_found_by_what_reads_it(
    newer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report has a seal of its own and is shown as it was written; nothing is derived from such records."""
    older = newer.with_name("20260101")
    record = next(newer.glob("legs/*/requests.parquet"))
    record.write_bytes(record.read_bytes() + b"x")
    shown.show("20260102", newer.parents[1], every=False)
    assert "PASS" in capsys.readouterr().out
    assert [entry.verdict for entry in runs.entries(newer.parents[1])] == ["PASS", "PASS"]
    for derive in (lambda: shown.report("20260102", newer.parents[1]), lambda: compare(older, newer)):
        with pytest.raises(StorageError, match=r"requests\.parquet was changed after the run was finished"):
            derive()
    found, said = accepted(newer)
    assert (found, len(said)) == ("20260101", 1)


@pytest.mark.parametrize("seal", LOST)
def test_it_is_neither_compared_nor_a_baseline(newer: Path, seal: str) -> None:
    older = newer.with_name("20260101")
    assert accepted(newer) == ("20260102", [])
    assert compare(older, newer).then.run_id == "20260101"
    (newer / seal).unlink()
    for pair in ((older, newer), (newer, older)):
        with pytest.raises(StorageError, match=LOST[seal]):
            compare(*pair)
    found, said = accepted(newer)
    assert (found, len(said)) == ("20260101", 1)
    assert said[0].startswith("20260102 is passed over as the last accepted grid: ")
    if seal == digests.REPORT:
        conclude(newer)
        assert accepted(newer) == ("20260102", [])
        assert compare(older, newer).then.run_id == "20260101"


@pytest.mark.parametrize("seal", LOST)
def test_an_a_a_gate_without_it_is_none_of_the_history(
    tmp_path: Path, build: Any, capsys: pytest.CaptureFixture[str], seal: str
) -> None:
    run = build.run(protocol={"concurrency": (1,), "repetitions": 2})
    oracle = run.plan.oracle
    same = oracle.model_copy(update={"arm": "candidate"})
    folder = keep_run(tmp_path / "results", run, "20260101", whole=True, candidate=same)
    key, said = history.key_of_run(store.read_run(folder)), list[str]()
    assert [gate.folder for gate in history.gates(folder.parent, key, said.append)] == [folder]
    (folder / seal).unlink()
    assert history.gates(folder.parent, key, said.append) == ()
    (line,) = said
    assert line.startswith("20260101 is passed over as an A/A gate: ")
    assert seal in line
    capsys.readouterr()


def test_an_unfinished_one_is_not_gone_on_with_without_its_announcements(newer: Path) -> None:
    """Its records could be anything: finished, they would be sealed as they lie there."""
    (newer / seals.COMPLETE).unlink()
    (newer / digests.RECORDS).unlink()
    with pytest.raises(StorageError, match=LOST[digests.RECORDS]):
        store.read_run(newer)


def test_announcements_that_do_not_fit_a_marker_are_found(newer: Path) -> None:
    """A record that was edited, and the marker made anew for it."""
    path = newer / "run.json"
    path.write_text(path.read_text().replace('"host": "box"', '"host": "other"'))
    marker = json.loads((newer / seals.COMPLETE).read_bytes())
    store.Store(newer).complete(marker["finished_at"], marker["verdict"], marker["exit_code"])
    with pytest.raises(
        StorageError,
        match=r"records\.sha256 does not announce run\.json as it is; expected the digests that were noted",
    ):
        store.read_run(newer)


def test_a_marker_that_lost_its_seal_is_changed_where_the_others_are_there(newer: Path) -> None:
    there = {name: (newer / name).read_bytes() for name in LOST}
    unseal(newer)
    for name, content in there.items():
        (newer / name).write_bytes(content)
        with pytest.raises(StorageError, match=r"complete\.json was changed after the run was finished"):
            store.read_run(newer)
        (newer / name).unlink()


def test_one_of_an_older_version_is_read_and_binds_nothing(
    newer: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unseal(newer)
    shown.show("20260102", results, every=False)
    assert [entry.unsealed for entry in runs.entries(results)] == ["", ""]
    assert accepted(newer)[0] == "20260101"
    report = conclude(newer)
    assert any("complete.json has no seal of its own" in why for why in report.not_binding_because)
    assert not report.binding
    whole = conclude(newer.with_name("20260101"))
    assert not any("no seal" in why for why in whole.not_binding_because)
    capsys.readouterr()


def test_a_report_derived_again_leaves_one_of_an_older_version_as_readable_as_it_was(
    newer: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unseal(newer)
    older = newer.with_name("20260101")
    for _ in range(2):
        assert shown.report("20260102", results) == 0
        shown.show("20260102", results, every=False)
        assert compare(older, newer).now.run_id == "20260102"
        assert [entry.unsealed for entry in runs.entries(results)] == ["", ""]
        assert not (newer / digests.REPORT).exists()
    capsys.readouterr()


def test_a_record_that_a_gate_writes_meanwhile_is_not_missing(newer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (newer / seals.COMPLETE).unlink()
    lately, look = newer / "legs" / "lately" / "requests.parquet", digests.of

    def found_and_then_written(folder: Path, paths: list[Path]) -> dict[str, str]:
        found = look(folder, paths)
        lately.parent.mkdir(exist_ok=True)
        for number in range(2):
            store.Store(newer).write_text(f"legs/lately/{('requests', 'legs')[number]}.parquet", "x")
        return found

    monkeypatch.setattr(seals.digests, "of", found_and_then_written)
    assert seals.check_records(newer) is None


def test_a_report_of_a_finished_run_is_not_shown_without_the_marker(
    newer: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may say that it binds; derived anew it says that the run was interrupted."""
    (newer / seals.COMPLETE).unlink()
    with pytest.raises(
        StorageError,
        match=r"complete\.json is missing, and the report is of a finished run; expected the marker that is written "
        r"last; restore it, or gate resume 20260102 ends the run once more",
    ):
        shown.show("20260102", results, every=False)
    entry = runs.entries(results)[-1]
    assert (entry.verdict, entry.binding, entry.complete) == (None, None, False)
    assert shown.report("20260102", results) in (0, 2)
    shown.show("20260102", results, every=False)
    told = " ".join(capsys.readouterr().out.split())
    assert "every planned leg is there, but the run was cut off before it was complete: the run was" in told
    assert runs.entries(results)[-1].verdict is not None


@pytest.mark.parametrize(
    "name", ["requests.parquet", "telemetry.parquet", "legs.parquet", "cells.parquet", "ratio.svg"]
)
def test_what_people_read_beside_the_report_is_sealed_with_it(newer: Path, results: Path, name: str) -> None:
    path = newer / name
    before = path.read_bytes()
    path.write_bytes(before + b" ")
    with pytest.raises(
        StorageError, match=rf"{name} was changed after it was written; .*; gate report 20260102 derives"
    ):
        shown.show("20260102", results, every=False)
    shown.report("20260102", results)
    assert path.read_bytes() == before
    shown.show("20260102", results, every=False)


def test_a_report_whose_version_sealed_less_beside_it_is_whole(newer: Path, results: Path) -> None:
    seal = newer / digests.REPORT
    kept = [line for line in seal.read_text().splitlines() if line.split()[1] in kinds.DERIVED["run"]]
    assert len(kept) == 4 < len(seal.read_text().splitlines())
    seal.write_text("\n".join(kept) + "\n")
    shown.show("20260102", results, every=False)


def test_a_seal_names_files_of_its_own_folder(newer: Path, results: Path) -> None:
    """Whatever else a line of it names is not read."""
    with (newer / digests.REPORT).open("a") as file:
        for name in ("../20260101/report.json", "/etc/hostname", "legs/../report.json"):
            file.write(f"{'0' * 64}  {name}\n")
    shown.show("20260102", results, every=False)


def test_a_damaged_marker_hides_no_lost_seal(newer: Path) -> None:
    for name in LOST:
        (newer / name).unlink()
    (newer / seals.COMPLETE).write_text("{")
    assert seals.lost_records(newer) is not None
    assert seals.lost_report(newer) is not None


def test_every_run_of_the_project_can_be_shown_and_the_unsealed_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    entries = runs.entries(ROOT / "results")
    assert {entry.run_id for entry in entries if not (entry.folder / digests.REPORT).is_file()} == OLDER
    for entry in entries:
        assert (entry.unsealed, entry.changed) == ("", False), entry.run_id
        shown.show(entry.run_id, ROOT / "results", every=False)
        seals.check_records(entry.folder)
    assert "unsealed" not in listing.runs_text(entries, ROOT / "results")
    capsys.readouterr()


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_folder_that_measured_nothing_has_no_exit_code_of_a_verdict(
    tmp_path: Path, kind: kinds.Kind, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """69, whoever measures: there is nothing that INCONCLUSIVE or VOID could be said of."""
    folder, asked = measured_nothing(tmp_path, kind), ["gate", "report", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", asked)
    assert shell.run(cli.app, "gate") == 69
    again = "gate resume 20260101 goes through the whole plan" if kind == "run" else f"gate {kind} begins anew"
    assert capsys.readouterr().err == f"gate: {folder} has no report, and no records to derive one from; {again}\n"
    assert not any((folder / name).exists() for name in kinds.DERIVED[kind])


def measured_nothing(out: Path, kind: kinds.Kind) -> Path:
    """A folder that was killed right after its plan was written."""
    run = Build.run(protocol={"concurrency": (1,), "repetitions": 1})
    makes: dict[str, Callable[[], Path]] = {
        "run": lambda: _run(out, run),
        "sweep": lambda: _aside(out, kind, _sweep(run)),
        "startup": lambda: _aside(out, kind, _startup(run)),
        "profile": lambda: _aside(out, kind, _profile()),
    }
    return makes[kind]()


def _run(out: Path, run: Any) -> Path:
    plan = run.plan.model_copy(update={"plan_id": ""})
    plan = plan.model_copy(update={"plan_id": store.document_hash(plan.model_dump(mode="json"))})
    place = store.Store(out / "box" / "20260101")
    place.create(plan, store.RunFile(run_id="20260101", host="box", started_at=run.started_at))
    return place.folder


def _aside(out: Path, kind: kinds.Kind, plan: Any) -> Path:
    folder = out / "box" / (kind if kind in kinds.DEEPER else "") / "20260101"
    folder.mkdir(parents=True)
    store.Store(folder).write_text(kinds.PLANS[kind], plan.model_dump_json())
    return folder


def _sweep(run: Any) -> SweepPlan:
    return SweepPlan(
        name="20260101",
        host="box",
        started_at="t",
        machine={},
        recipe=run.plan.recipe,
        coin="candidate",
        seed=1,
        arms=("candidate",),
        candidate=run.plan.candidate,
        oracle=None,
        points=(),
        repetitions=1,
        legs=(),
        sealed=True,
    )


def _startup(run: Any) -> StartupPlan:
    about: dict[str, Any] = {"name": "20260101", "host": "box", "started_at": "t", "machine": {}, "wanted_cache": None}
    return StartupPlan(**about, plan=run.plan, sealed=True)


def _profile() -> ProfileFile:
    return data().file.model_copy(update={"sealed": True})
