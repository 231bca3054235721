"""Two stored runs: what is compared, what makes it indicative, what is refused; and the command with its exit codes."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gate import cli, interrupt, shell
from gate.compare.comparison import compare
from gate.compare.differences import machine_differences
from gate.compare.show import render
from gate.errors import UsageError
from gate.plan import PlannedLeg
from tests.gate.aside_reports import NoReader
from tests.gate.compare.conftest import Keep


def slower(by: float) -> Any:
    """The candidate alone."""
    return lambda leg: 1 - by if leg.arm == "candidate" else 1.0


def ahead(by: float) -> Any:
    return lambda leg: 1 + by if leg.arm == "candidate" else 1.0


def jittered(leg: PlannedLeg) -> float:
    return 1 + 0.001 * leg.repetition


def test_equal_runs_have_lost_nothing(keep: Keep, build: Any) -> None:
    found = compare(keep(build.run(jittered), "a"), keep(build.run(jittered), "b"))
    assert (found.verdict, found.exit_code, found.differences) == ("none", 0, ())
    assert {cell.verdict for cell in found.cells} == {"none"}
    assert len(found.cells) == 6


def test_a_slower_candidate_is_a_loss_though_its_ratio_passes(keep: Keep, build: Any) -> None:
    found = compare(keep(build.run(ahead(0.4)), "a"), keep(build.run(ahead(0.2)), "b"))
    assert (found.now.verdict, found.verdict, found.exit_code) == ("PASS", "loss", 1)
    text = render(found)
    assert "LOSS" in text.splitlines()[0]
    assert "1.400 → 1.200" in text


def test_a_slower_host_is_no_loss(keep: Keep, build: Any) -> None:
    found = compare(keep(build.run(), "a"), keep(build.run(lambda _leg: 0.8), "b"))
    assert (found.verdict, found.exit_code) == ("host-moved", 2)


def test_another_host_is_judged_by_ratios_and_indicative(keep: Keep, build: Any) -> None:
    there = dataclasses.replace(build.run(lambda _leg: 0.5), machine={"cpu": "Other 1"})
    found = compare(keep(build.run(), "a"), keep(there, "b", host="far"))
    assert (found.same_machine, found.binding, found.verdict) == (False, False, "none")
    assert "host is box in the first, far in the second" in found.indicative_because
    assert "cpu is Made-up 9000 in the first, Other 1 in the second" in found.indicative_because
    assert "the verdict is that of the ratios" in render(found)


def test_void_cells_are_not_compared(keep: Keep, build: Any) -> None:
    run = build.run()
    broken = run
    for leg in run.plan.legs:
        broken = build.alter_leg(broken, leg.leg_id, lock_held=False)
    found = compare(keep(run, "a"), keep(broken, "b"))
    assert (found.verdict, found.exit_code) == ("void", 3)
    assert all(cell.candidate_now is None and cell.candidate is None for cell in found.cells)


def test_what_differs_is_listed(keep: Keep, build: Any) -> None:
    run = build.run()
    other = run.plan.oracle.model_copy(update={"argv": ("serve-oracle", "--port", "8001", "--fast")})
    then, now = keep(run, "a"), keep(run, "b", oracle=other, coin="oracle", seed=7)
    found = compare(then, now)
    assert {one.what: one.weakens for one in found.differences} == {"oracle command": True, "seed": True, "coin": False}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"workload": {"output_tokens": 9}},
            "workload is output_tokens = 8 in the first, output_tokens = 9 in the second",
        ),
        ({"max_model_len": 128}, "max_model_len is 64 in the first, 128 in the second"),
        ({"protocol": {"concurrency": (4,)}}, "no concurrency in common"),
    ],
)
def test_another_recipe_is_refused(keep: Keep, build: Any, change: dict[str, Any], said: str) -> None:
    then, now = keep(build.run(), "a"), keep(build.run(**change), "b")
    with pytest.raises(UsageError, match=said):
        compare(then, now)


def test_another_checkpoint_is_refused(keep: Keep, build: Any) -> None:
    run = build.run()
    arm = run.plan.candidate.model_copy(update={"checkpoint_digest": "d2"})
    then, now = keep(run, "a"), keep(run, "b", candidate=arm)
    with pytest.raises(UsageError, match="the candidate's checkpoint has digest d1 in the first, d2 in the second"):
        compare(then, now)


def test_a_run_is_not_compared_with_itself(keep: Keep, build: Any) -> None:
    folder = keep(build.run(), "a")
    with pytest.raises(UsageError, match="a twice; expected two runs"):
        compare(folder, folder)


def test_a_token_run_has_no_figures(keep: Keep, build: Any, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"flow": "tokens"}', encoding="utf-8")
    with pytest.raises(UsageError, match="judged tokens alone; expected runs of gate run"):
        compare(keep(build.run(), "a"), tmp_path)


@pytest.mark.parametrize("as_json", [False, True])
def test_command(
    keep: Keep, build: Any, as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    then, now = keep(build.run(ahead(0.4)), "a"), keep(build.run(ahead(0.2)), "b")
    monkeypatch.setattr(interrupt, "install", lambda: None)
    words = ["gate", "compare", "a", "b", "--out", str(then.parents[1]), *["--json"] * as_json]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        cli.main()
    printed = capsys.readouterr().out
    assert end.value.code == 1
    if as_json:
        document = json.loads(printed)
        assert (document["verdict"], document["then"]["run_id"], len(document["cells"])) == ("loss", then.name, 6)
    else:
        assert printed == render(compare(then, now))


def test_the_exit_code_is_kept_without_a_reader(keep: Keep, build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gate compare A B | head -3`: its 0 would say that nothing was lost."""
    then, _now = keep(build.run(ahead(0.4)), "a"), keep(build.run(ahead(0.2)), "b")
    monkeypatch.setattr(interrupt, "install", lambda: None)
    monkeypatch.setattr(shell, "quiet", lambda: None)  # pytest's standard output is no file
    monkeypatch.setattr(sys, "argv", ["gate", "compare", "a", "b", "--out", str(then.parents[1])])
    monkeypatch.setattr(sys, "stdout", NoReader())
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1


def test_another_power_limit_is_another_machine_and_an_unknown_one_is_not() -> None:
    capped, free, silent = {"power_limit_gpu0": "400 W"}, {"power_limit_gpu0": "700 W"}, dict[str, str]()
    assert [(one.what, one.then, one.now) for one in machine_differences(free, capped)] == [
        ("power_limit_gpu0", "700 W", "400 W")
    ]
    assert list(machine_differences(free, silent)) == list(machine_differences(silent, free)) == []
