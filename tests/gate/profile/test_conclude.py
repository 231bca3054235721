"""Raw records to a judged profile: exit codes, refusals, drift from the control, two profiles against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gate import runs, shown
from gate.errors import UsageError
from gate.observe.rows import Arm
from gate.profile import table
from gate.profile.conclude import compare, conclude, derive, exit_code
from gate.profile.rows import Role, Traced, Window
from gate.profile.store import ArmRecord, ProfileData, ProfileFile, ProfileStore
from tests.gate.aside_reports import (
    changed_records_are_refused,
    changed_reports_are_refused,
    exit_code_is_kept_without_a_reader,
    lost_seals_are_told,
)
from tests.gate.profile.tables import census, fixture, wall, windows

TABLES: dict[Arm, str] = {"candidate": "engine-h200-27b-b1-composed", "oracle": "vllm-0.25.0-h200-27b-b1"}


def side(arm: Arm, role: Role = "measured", slower: float = 1.0) -> tuple[list[Window], ArmRecord]:
    """Windows of a fixture's rows, and a wall time 0.4 % above their sum."""
    rows = [[us * slower, n, name] for us, n, name in fixture(TABLES[arm])["rows"]]
    made = [w.model_copy(update={"role": role}) for w in windows(rows, arm=arm)]
    record = ArmRecord(
        arm=arm,
        role=role,
        name=arm,
        argv=(),
        version=None,
        kv_cache_dtype="fp8",
        wall=wall(sum(us for us, _, _ in rows) * 1.004),
    )
    return made, record


def data(*sides: tuple[list[Window], ArmRecord], run_id: str = "r1", **changes: Any) -> ProfileData:
    file = ProfileFile(
        run_id=run_id,
        recipe="27b",
        host="h",
        started_at="t",
        backend="cupti",
        nsys=None,
        concurrency=1,
        prompt_tokens=1024,
        rounds=1,
    )
    made = [w.model_copy(update=changes) if w.arm == "oracle" else w for ws, _ in sides for w in ws]
    return ProfileData(
        file=file, arms=tuple(record for _, record in sides), windows=tuple(made), census=census("27b", 1)
    )


def test_a_profile_with_its_control_is_proven() -> None:
    """The first arm again, every kernel 0.3 % slower: that is the drift, and every lever is above it."""
    report = derive(data(side("candidate"), side("oracle"), side("candidate", "control", slower=1.003)))
    assert report.findings == ()
    assert exit_code(report) == 0
    assert report.attribution is not None
    assert report.attribution.drift == pytest.approx(0.003, abs=1e-5)
    assert {lever.proof for lever in report.attribution.levers} == {"launch counts", "by family"}
    total = sum(lever.delta_us for lever in report.attribution.levers) + report.attribution.residual_us
    assert total == pytest.approx(report.attribution.delta_us)
    assert report.attribution.residual_us == pytest.approx((5825.0 - 8996.4) * 0.004, abs=0.1)


def test_what_an_arm_holds_stands_beside_what_it_reads() -> None:
    made, record = side("candidate")
    held = record.model_copy(update={"resident_bytes": 19_500_000_000})
    report = derive(data((made, held), side("oracle")))
    assert report.candidate is not None
    assert report.oracle is not None
    assert report.candidate.notes[-1] == "holds 19.50 GB of weights; a step reads 17.60 GB as shipped"
    assert not any("holds" in note for note in report.oracle.notes)


def test_two_engines_without_a_control_share_no_kernel() -> None:
    report = derive(data(side("candidate"), side("oracle")))
    assert [f.code for f in report.findings] == ["no-drift-control"]
    assert exit_code(report) == 2
    assert report.attribution is not None
    assert {lever.proof for lever in report.attribution.levers} == {"unproven"}


def test_a_refused_arm_leaves_no_table() -> None:
    report = derive(data(side("candidate"), side("oracle"), level="graph"))
    assert (report.refused, report.candidate, report.oracle, report.attribution) == (True, None, None, None)
    assert exit_code(report) == 3


def test_an_arm_without_kernels_is_refused_too() -> None:
    report = derive(data(side("candidate"), side("oracle"), level="none", kernels=(), busy_us=None))
    assert exit_code(report) == 3


def test_two_of_our_own_profiles() -> None:
    """One kernel 10 % faster, the rest as before: its lever is 'same kernels', everything else below the drift."""
    new, old = side("candidate"), side("candidate", slower=1.0)
    faster = [
        w.model_copy(
            update={
                "kernels": tuple(
                    k.model_copy(update={"us": k.us * 0.9}) if "gdn_decode" in k.name else k for k in w.kernels
                )
            }
        )
        for w in new[0]
    ]
    report = compare(data((faster, new[1]), run_id="new"), data(old, run_id="old"))
    assert report.candidate is not None
    assert report.oracle is not None
    assert (report.candidate.name, report.oracle.name) == ("new", "old")
    assert report.attribution is not None
    assert {lever.families[0]: lever.proof for lever in report.attribution.levers if lever.delta_us} == {
        "gdn_step": "same kernels"
    }
    assert report.attribution.levers[0].delta_us == pytest.approx(-17.76)
    shown = table.render(report)
    assert shown.index("first: candidate of new, batch 1:") < shown.index("second: candidate of old, batch 1:")
    assert "first µs   second µs   delta µs" in shown
    assert "first: fp8: 128 launches" in shown
    assert "second: fp8: 128 launches" in shown
    assert "oracle" not in shown
    assert exit_code(report) == 0


@pytest.mark.parametrize("change", [{"backend": "nsys"}, {"concurrency": 8}, {"prompt_tokens": 128}, {"recipe": "35b"}])
def test_profiles_that_were_not_made_alike_are_not_compared(change: dict[str, Any]) -> None:
    made = data(side("candidate"))
    other = made.model_copy(update={"file": made.file.model_copy(update=change)})
    with pytest.raises(UsageError, match=f"has {next(iter(change))} .*; expected two profiles made alike"):
        compare(made, other)


def test_a_refused_profile_cannot_be_compared() -> None:
    broken = data(side("candidate"), run_id="broken")
    graph = broken.model_copy(
        update={"windows": tuple(w.model_copy(update={"level": "graph"}) for w in broken.windows)}
    )
    report = compare(data(side("candidate")), graph)
    assert report.refused
    assert "graph-level-trace" in {f.code for f in report.findings}


def test_a_profile_of_which_something_was_not_traced_is_unproven() -> None:
    """Equal kernels of both arms can bound the drift without the control; what was planned is missing all the same."""
    made = data(side("candidate"), side("oracle"), side("candidate", "control", slower=1.003))
    planned = tuple(Traced(arm=record.arm, role=record.role) for record in made.arms)
    whole = made.model_copy(update={"file": made.file.model_copy(update={"planned": planned})})
    assert (derive(whole).missing, exit_code(derive(whole))) == ((), 0)
    windows_cut = whole.model_copy(update={"windows": whole.windows[:-1]})
    record_cut = whole.model_copy(update={"arms": whole.arms[:-1]})
    for cut in (windows_cut, record_cut):
        report = derive(cut).model_copy(update={"findings": (), "attribution": derive(whole).attribution})
        assert [one.text for one in report.missing] == ["the control of the candidate"]
        assert exit_code(report) == 2
    alone = derive(data(side("oracle")))
    assert [one.text for one in alone.missing] == ["the candidate"]
    assert "incomplete: the candidate was not traced; gate profile begins anew" in table.render(alone)
    assert "incomplete: the candidate and the oracle were not traced" in table.render(derive(data()))


def test_it_is_listed_shown_and_derived_again_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, name = data(side("candidate"), side("oracle"), side("candidate", "control", slower=1.003)), "r1-profile"
    place = ProfileStore(tmp_path / "h" / name)
    place.begin(made.file.model_copy(update={"sealed": True}))
    place.write_raw(made.arms, made.windows, made.census)
    code, printed = conclude(place.folder), capsys.readouterr().out
    (entry,) = runs.entries(tmp_path)
    assert (entry.kind, entry.host, entry.run_id, entry.recipe) == ("profile", "h", name, "27b")
    assert (entry.complete, entry.holds) == (True, "c1 cupti: candidate, oracle, control")
    for named in (None, "r1", str(place.folder)):
        shown.show(named, tmp_path, every=False)
        assert capsys.readouterr().out == printed
        assert shown.report(named, tmp_path) == code
        assert capsys.readouterr().out == printed
    exit_code_is_kept_without_a_reader(place.folder.name, code, tmp_path)
    changed_reports_are_refused(place.folder, "attribution.json", tmp_path)
    lost_seals_are_told(place.folder, "attribution.json", tmp_path, capsys)
    changed_records_are_refused(place.folder, tmp_path)
