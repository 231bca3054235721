"""Finding a run by name, listing what is there, and saying how long it will take."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from gate import listing, runs, shown
from gate.conclude import stored
from gate.errors import StorageError, UsageError
from gate.observe import ended
from gate.observe.store import Store
from gate.progress import Ui


def make(out: Path, host: str, name: str, report: str | None = None, complete: bool = False) -> Path:
    folder = out / host / name
    (folder / "legs" / "000-a").mkdir(parents=True)
    (folder / "legs" / "000-a" / "legs.parquet").touch()
    (folder / "plan.json").write_text(json.dumps({"recipe": {"name": "tiny"}, "legs": [1, 2]}))
    (folder / "records.sha256").touch()
    if report is not None:
        (folder / "report.json").write_text(report)
        Store(folder).seal_report()
    if complete:
        (folder / "complete.json").write_text("{}")
    return folder


def aside(
    out: Path, kind: runs.Kind, name: str, measured: int | None = None, report: dict[str, object] | None = None
) -> Path:
    """A folder of two planned legs as gate sweep or gate startup leaves it."""
    folder, inner = out / "a" / kind / name, {"recipe": {"name": "tiny"}, "legs": [1, 2]}
    folder.mkdir(parents=True)
    (folder / runs.PLANS[kind]).write_text(json.dumps(inner if kind == "sweep" else {"plan": inner}))
    if measured is not None:
        pq.write_table(pa.table({"x": range(measured)}), folder / runs.RECORDS[kind])
    if report is not None:
        (folder / runs.REPORTS[kind]).write_text(json.dumps(report))
        Store(folder).seal_report()
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    make(tmp_path, "b", "20260101T000000Z-tiny-aaaa", '{"verdict": "PASS", "binding": true}', complete=True)
    make(tmp_path, "a", "20260102T000000Z-tiny-bbbb", "not json")
    (tmp_path / "a" / "other").mkdir()
    return tmp_path


def test_by_name_by_beginning_by_path_and_the_newest(out: Path) -> None:
    first, second = out / "b" / "20260101T000000Z-tiny-aaaa", out / "a" / "20260102T000000Z-tiny-bbbb"
    assert runs.find(first.name, out) == first
    assert runs.find("20260102", out) == second
    assert runs.find(str(first), Path("/nowhere")) == first
    assert runs.find(None, out) == second


def test_by_the_plan_id_that_the_run_said(out: Path) -> None:
    folder = make(out, "a", "20260103T000000Z-tokens-tiny-522116c9")
    (folder / "plan.json").write_text(json.dumps({"plan_id": "522116c9abcd" + "0" * 52}))
    for name in ("5221", "522116c9", "522116c9abcd", "522116c9abcd" + "0" * 52):
        assert runs.find(name, out) == folder
    for other in ("522", "522116c9abce", "116c9", "522116ca"):
        with pytest.raises(UsageError, match=f"no run '{other}'"):
            runs.find(other, out)
    again = make(out, "a", "20260104T000000Z-tokens-tiny-522116c9")
    (again / "plan.json").write_text((folder / "plan.json").read_text())
    with pytest.raises(UsageError, match=f"2 runs are named '522116c9': {folder.name}, {again.name}; expected one"):
        runs.find("522116c9", out)


def test_sweeps_and_start_ups_are_found_only_by_who_can_use_them(out: Path) -> None:
    swept, started = aside(out, "sweep", "20260103T000000Z-tiny"), aside(out, "startup", "20260104T000000Z-tiny-cold")
    assert runs.find("20260103", out, runs.KINDS) == swept
    assert runs.find(str(started), Path("/nowhere"), runs.KINDS) == started
    assert runs.find(None, out, runs.KINDS) == started
    assert runs.find(None, out) == out / "a" / "20260102T000000Z-tiny-bbbb"
    for name in ("20260103", str(swept)):
        with pytest.raises(UsageError, match=f"{swept.name} is of gate sweep; expected a run of gate run"):
            runs.find(name, out)
    with pytest.raises(UsageError, match="is of gate startup"):
        runs.find(started.name, out)
    assert [runs.kind_of(folder) for folder in (swept, started, out)] == ["sweep", "startup", "run"]


def test_sweeps_and_start_ups_are_listed_with_what_they_have(out: Path) -> None:
    aside(out, "sweep", "20260103T000000Z-tiny", measured=2, report={"complete": True})
    aside(out, "startup", "20260104T000000Z-tiny-cold", measured=1, report={"verdict": "INCONCLUSIVE"})
    aside(out, "startup", "20260105T000000Z-tiny-warm")
    (out / "a" / "startup" / "20260105T000000Z-tiny-warm" / "starts.parquet").write_text("damaged")
    lines = [line.split() for line in listing.runs_text(runs.entries(out), out).splitlines()]
    assert lines[3] == ["20260103T000000Z-tiny", "a", "–", "–", "2/2", "sweep"]
    assert lines[4] == [
        "20260104T000000Z-tiny-cold",
        "a",
        "INCONCLUSIVE",
        "indicative",
        "1/2",
        "startup",
        "incomplete",
    ]
    assert lines[5] == ["20260105T000000Z-tiny-warm", "a", "–", "–", "0/2", "startup", "incomplete"]


def test_a_sweep_is_listed_as_complete_only_where_its_report_says_so(out: Path) -> None:
    """Every leg was measured, and one gave no value: the report says incomplete, and the exit code is 3."""
    aside(out, "sweep", "20260103T000000Z-tiny", measured=2, report={"complete": False})
    assert runs.entries(out)[-1].complete is False


def profiled(out: Path, name: str, arms: str, report: dict[str, object] | None = None) -> Path:
    """A folder as gate profile leaves it; arms: such as "candidate oracle control"."""
    folder = out / "a" / name
    folder.mkdir(parents=True)
    (folder / "profile.json").write_text(json.dumps({"recipe": "tiny", "backend": "nsys", "concurrency": 4}))
    roles = [("candidate", arm) if arm == "control" else (arm, "measured") for arm in arms.split()]
    (folder / "arms.json").write_text(json.dumps([{"arm": arm, "role": role} for arm, role in roles]))
    if report is not None:
        (folder / "attribution.json").write_text(json.dumps(report))
    return folder


def test_profiles_are_listed_with_what_was_traced(out: Path) -> None:
    profiled(out, "20260103T000000Z-tiny-profile-1", "candidate oracle control", {"refused": False})
    profiled(out, "20260103T000000Z-tiny-profile-2", "oracle candidate", {"refused": True})
    profiled(out, "20260103T000000Z-tiny-profile-3", "oracle", {"refused": False})
    profiled(out, "20260103T000000Z-tiny-profile-4", "candidate oracle")
    (profiled(out, "20260103T000000Z-tiny-profile-5", "") / "arms.json").write_text('[3, {"arm": {}}, "')
    (profiled(out, "20260103T000000Z-tiny-profile-6", "") / "arms.json").write_text('{"arm": "oracle"}')
    lines = listing.runs_text(runs.entries(out), out).splitlines()[3:-1]
    assert [line.split(maxsplit=5) for line in lines] == [
        [f"20260103T000000Z-tiny-profile-{number}", "a", "–", "–", "–", f"profile c4 nsys{what}"]
        for number, what in (
            (1, ": candidate, oracle, control"),
            (2, ": oracle, candidate, refused"),
            (3, ": oracle incomplete, no candidate"),
            (4, ": candidate, oracle incomplete"),
            (5, " incomplete"),
            (6, " incomplete"),
        )
    ]


def test_a_folder_with_the_plans_of_two_kinds_is_one_folder(out: Path) -> None:
    folder = out / "a" / "20260102T000000Z-tiny-bbbb"
    (folder / "profile.json").write_text("{}")
    assert [entry.folder for entry in runs.entries(out)].count(folder) == 1
    assert runs.find("20260102", out, runs.KINDS) == folder


def test_what_a_file_says_is_one_printable_line_of_the_list(out: Path) -> None:
    """Half of a character would end the list, and an escape code or a line break speak for the gate."""
    said = json.dumps([{"arm": "x\x1b[31m\ny", "role": "measured"}, {"arm": "oracle", "role": "\ud800"}])
    (profiled(out, "20260103T000000Z-tiny-profile-1", "") / "arms.json").write_text(said)
    line = listing.runs_text(runs.entries(out), out).splitlines()[-2]
    assert line.split("  ")[-1].strip() == "– profile c4 nsys: x [31m y, incomplete, no candidate, oracle"


def test_a_profile_whose_plan_is_damaged_is_listed_without_it(out: Path) -> None:
    (profiled(out, "20260103T000000Z-tiny-profile-1", "oracle") / "profile.json").write_text('{"concurrency"')
    assert runs.entries(out)[-1].holds == "c– –: oracle"


def test_profiles_are_found_only_by_who_can_use_them(out: Path) -> None:
    folder = profiled(out, "20260103T000000Z-tiny-profile-1", "")
    assert runs.find("20260103", out, runs.KINDS) == folder
    assert runs.find(str(folder), Path("/nowhere"), runs.KINDS) == folder
    assert runs.find(None, out, runs.KINDS) == folder
    assert runs.find(None, out) == out / "a" / "20260102T000000Z-tiny-bbbb"
    with pytest.raises(UsageError, match=f"{folder.name} is of gate profile; expected a run of gate run"):
        runs.find("20260103", out)
    with pytest.raises(
        StorageError, match="has no report, and no records to derive one from; gate profile begins anew"
    ):
        shown.show(folder.name, out, every=False)


def test_one_without_a_report_says_how_to_get_it(out: Path) -> None:
    folder = aside(out, "sweep", "20260103T000000Z-tiny", measured=1)
    with pytest.raises(StorageError, match="has no report; gate report 20260103T000000Z-tiny derives one"):
        shown.show("20260103", out, every=False)
    (folder / "sweep.json").write_text("{")
    Store(folder).seal_report()
    with pytest.raises(StorageError, match=r"sweep\.json cannot be read"):
        shown.show("20260103", out, every=False)
    with pytest.raises(StorageError, match=r"sweep-plan\.json cannot be read"):
        shown.report("20260103", out)


def test_ambiguous_and_unknown_names_are_one_line(out: Path) -> None:
    with pytest.raises(UsageError, match="2 runs are named '2026': 20260101T000000Z-tiny-aaaa, 2026"):
        runs.find("2026", out)
    with pytest.raises(UsageError, match="did you mean 20260101T000000Z-tiny-aaaa"):
        runs.find("20260101T000000Z-tiny-aaab", out)
    with pytest.raises(UsageError, match="no runs under"):
        runs.find(None, out / "b" / "empty")


def test_list_is_in_time_order_and_survives_damage(out: Path) -> None:
    lines = listing.runs_text(runs.entries(out), out).splitlines()
    assert lines[1].split() == ["20260101T000000Z-tiny-aaaa", "b", "PASS", "binding", "1/2"]
    assert lines[2].split() == ["20260102T000000Z-tiny-bbbb", "a", "–", "–", "1/2", "incomplete"]
    assert lines[-1] == f"in {out}"
    assert listing.runs_text((), out) == f"no runs under {out}"


def test_a_report_that_was_edited_has_no_verdict(out: Path) -> None:
    folder = out / "b" / "20260101T000000Z-tiny-aaaa"
    for name in ("report.md", "report.html"):
        (folder / name).touch()
    Store(folder).seal_report()
    assert "PASS" in listing.runs_text(runs.entries(out), out)
    (folder / "report.json").write_text('{"verdict": "PASS", "binding": true} ')
    lines = listing.runs_text(runs.entries(out), out).splitlines()
    assert lines[1].split() == ["20260101T000000Z-tiny-aaaa", "b", "–", "–", "1/2", "report", "changed"]
    (folder / "report.json").unlink()
    assert runs.entries(out)[0].changed is False


def test_the_folder_that_was_searched_is_named_whole(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(out)
    assert listing.runs_text((), Path("empty")) == f"no runs under {out / 'empty'}"
    with pytest.raises(UsageError, match=f"no runs under {out / 'empty'}"):
        runs.find(None, Path("empty"))
    assert runs.RESULTS.is_absolute()
    assert runs.from_here(out / "b" / "x") == "b/x"
    assert runs.from_here(out.parent / "x") == str(out.parent / "x")


def test_a_run_that_never_began_is_listed_as_failed_and_explained(out: Path) -> None:
    folder = out / "b" / "20260103T000000Z-tiny-cccc"
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps({"recipe": {"name": "tiny"}, "legs": [1, 2]}))
    (folder / "records.sha256").touch()
    (folder / "failed.json").write_text(json.dumps({"why": "the oracle died at start"}))
    assert listing.runs_text(runs.entries(out), out).splitlines()[3].endswith("0/2 failed to start")
    with pytest.raises(
        StorageError, match=r"nothing measured: the oracle died at start; mend that; then gate resume .* whole plan$"
    ):
        stored(folder)


@pytest.mark.parametrize(
    ("kind", "record"), [("run", "tokens/answers-oracle-long-t0"), ("startup", "starts"), ("profile", "windows")]
)
def test_one_that_ended_early_is_no_failed_start_once_something_was_measured(
    tmp_path: Path, kind: runs.Kind, record: str
) -> None:
    folder = tmp_path / "a" / (kind if kind in runs.DEEPER else "") / "20260103T000000Z-tiny"
    folder.mkdir(parents=True)
    (folder / runs.PLANS[kind]).write_text("{}")
    (folder / "records.sha256").touch()
    (folder / "failed.json").write_text(json.dumps({"why": "the oracle died at start"}))
    again = "gate resume 20260103T000000Z-tiny goes through the whole plan" if kind == "run" else f"gate {kind} begins"
    assert listing.runs_text(runs.entries(tmp_path), tmp_path).splitlines()[1].endswith("failed to start")
    with pytest.raises(StorageError, match=f"nothing measured: the oracle died at start; mend that; then {again}"):
        shown.show(None, tmp_path, every=False)
    (folder / f"{record}.parquet").parent.mkdir(exist_ok=True)
    (folder / f"{record}.parquet").touch()
    assert listing.runs_text(runs.entries(tmp_path), tmp_path).splitlines()[1].endswith("incomplete")
    with pytest.raises(StorageError, match="has no report; gate report 20260103T000000Z-tiny derives one"):
        shown.show(None, tmp_path, every=False)


def test_one_that_was_interrupted_did_not_fail_to_start_and_has_nothing_to_mend(tmp_path: Path) -> None:
    for kind in runs.KINDS:
        folder = tmp_path / "a" / (kind if kind in runs.DEEPER else "") / f"20260103T000000Z-{kind}"
        folder.mkdir(parents=True)
        (folder / runs.PLANS[kind]).write_text("{}")
        (folder / "records.sha256").touch()
        with pytest.raises(KeyboardInterrupt), ended.noted(Store(folder)):
            raise KeyboardInterrupt
        with pytest.raises(StorageError, match="nothing measured: the run was interrupted; gate "):
            shown.show(folder.name, tmp_path, every=False)
    listed = listing.runs_text(runs.entries(tmp_path), tmp_path).splitlines()[1:-1]
    assert len(listed) == len(runs.KINDS)
    assert all(line.endswith("incomplete") for line in listed)


def test_the_bar_is_never_drawn_by_itself() -> None:
    """No thread repaints it while a leg is timed."""
    before = set(threading.enumerate())
    text = io.StringIO()
    ui = Ui(Console(file=text, force_terminal=True, width=100))
    with ui.legs(0, 2):
        assert set(threading.enumerate()) <= before
        ui.leg("leg 1/2: oracle c1 r0")
        drawn = text.getvalue()
        assert "leg 1/2" in drawn
        ui.leg_done(8.0)
        assert "about 8.0 s left" in text.getvalue()[len(drawn) :]


def test_plain_lines_tell_what_is_left_and_escape_nothing() -> None:
    text = io.StringIO()
    ui = Ui(Console(file=text, soft_wrap=True, highlight=False))
    with ui.legs(1, 4):
        ui.leg("leg 2/4: [oracle]")
        ui.leg_done(100.0)
        ui.leg_done(4.0)
        ui.leg_done(4.0)
    lines = text.getvalue().splitlines()
    assert lines[0] == "leg 2/4: [oracle]"
    assert lines[1] == "  took 1 m 40 s, about 3 m 20 s left"
    assert lines[2] == "  took 4.0 s, about 52 s left"
    assert lines[3] == "  took 4.0 s"
