"""`gate selftest`: what it tries, what it says, and that it notices a gate that judges wrong."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gate.cli import app
from gate.errors import FAIL, PASS, LockHeldError, UsageError
from gate.judge import judge
from gate.lock import Lock, hold
from gate.observe.rows import Verdict
from gate.plan import ArmPlan
from gate.selftest import cases, examine, live
from gate.selftest.examine import ABOUT

PROTOCOL = {"concurrency": (1, 2), "repetitions": 3, "band": live.BAND, "max_spread": 0.35}


@pytest.fixture(autouse=True)
def _own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATE_LOCK_DIR", str(tmp_path / "locks"))


@pytest.fixture
def lock(_own_lock: None) -> Iterator[Lock]:
    with hold(live.recipe()) as held:
        yield held


def ran(*only: str) -> tuple[int, str]:
    lines: list[str] = []
    return examine.examine(only, lines.append), "\n".join(lines)


def test_names_are_unique_and_every_class_says_what_it_is_about() -> None:
    trials = examine.trials()
    assert len({trial.name for trial in trials}) == len(trials)
    for trial in trials:
        assert (trial.case is None) != (trial.gate is None)
        assert trial.group in examine.ABOUT or trial.name == trial.group


def test_one_class_in_a_line_with_its_count() -> None:
    code, text = ran("tokens")
    expected = sum(trial.group == "tokens" for trial in examine.trials())
    assert code == PASS
    assert text.splitlines()[0].split(maxsplit=4) == ["tokens", str(expected), "of", str(expected), ABOUT["tokens"]]
    assert text.splitlines()[-1] == f"all {expected} as expected"


def test_a_gate_that_judges_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(trial.name for trial in examine.trials() if trial.group == "tokens")
    differences = cases.differences
    monkeypatch.setattr(
        cases, "differences", lambda case: differences(case | {"expect": case["expect"] | {"verdict": "nonsense"}})
    )
    code, text = ran(name)
    assert code == FAIL
    assert "0 of 1" in text
    assert f"{name}: verdict: " in text
    assert "expected 'nonsense'" in text
    assert text.endswith(f"1 of 1 not as expected; again: gate selftest --only {name}")


def test_an_unknown_name_is_one_line_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no case 'equal-arm'; did you mean equal-arms"):
        examine.examine(["equal-arm"])


def test_without_the_repositorys_cases_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no cases in .*install editable from a whole checkout"):
        cases.folders(tmp_path)


def test_list_starts_nothing(lock: Lock) -> None:
    assert lock.held()
    done = CliRunner().invoke(app, ["selftest", "--list"])
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == len(examine.trials())
    assert "a server against itself" in done.stdout


def test_servers_are_not_started_beside_a_gate(lock: Lock) -> None:
    assert lock.held()
    with pytest.raises(LockHeldError):
        examine.examine(["http-drop"])


def test_a_fault_over_http_is_void_and_leaves_nothing(tmp_path: Path, lock: Lock) -> None:
    found = live.fault("drop", tmp_path / "drop", lock)
    assert found == live.Found("VOID, failed-request")


def test_a_fault_that_is_not_there_is_noticed(build: Any) -> None:
    found = live.judge_fault(judge(build.run()), "failed-request")
    assert "reasons are none, expected failed-request" in found.problems
    assert "output_throughput is not VOID" in found.problems


def test_another_reason_than_the_planted_one_is_noticed(build: Any) -> None:
    run = build.run()
    void = judge(build.alter_identity(run, "oracle", kv_cache_dtype="fp8"))
    (problem,) = live.judge_fault(void, "failed-request").problems
    assert "kv-dtype-differs" in problem
    assert live.judge_fault(void, "kv-dtype-differs").problems == ()


def test_equal_arms_pass_and_their_figures_are_shown(build: Any) -> None:
    found = live.judge_equal([judge(build.run(protocol=PROTOCOL))])
    assert found.problems == ()
    assert found.figure == (
        "1 gate, 6 primary cells: 6 PASS; ratios 1.000 to 1.000, median 1.000, expected 0.90 to 1.11"
    )


def test_a_false_fail_is_a_problem_even_where_the_median_is_right(build: Any) -> None:
    good = judge(build.run(protocol=PROTOCOL))
    slow = judge(build.run(lambda leg: 0.7 if leg.arm == "candidate" else 1.0, protocol=PROTOCOL))
    problems = live.judge_equal([good, good, slow]).problems
    assert len(problems) == 6
    assert all(problem.startswith("false FAIL of ") for problem in problems)


def test_equal_arms_that_come_out_apart_without_a_fail_are_a_problem(build: Any) -> None:
    fast = judge(build.run(lambda leg: 1.2 if leg.arm == "candidate" else 1.0, protocol=PROTOCOL))
    assert live.judge_equal([fast]).problems == ("median ratio of equal arms is 1.200, expected 0.90 to 1.11",)


def test_nothing_measured_is_a_problem_with_its_reason(build: Any) -> None:
    run = build.run(protocol=PROTOCOL)
    for leg in run.legs:
        run = build.alter_leg(run, leg.leg_id, lock_held=False)
    problems = live.judge_equal([judge(run)]).problems
    assert [problem for problem in problems if problem.startswith("no cell could be measured: ")]


@pytest.mark.parametrize(("speed", "expected"), [(1 / live.SLOW_DOWN, ()), (1.0, ("says PASS", "expected FAIL"))])
def test_the_planted_slow_down_must_be_found(build: Any, speed: float, expected: tuple[str, ...]) -> None:
    report = judge(build.run(lambda leg: speed if leg.arm == "candidate" else 1.0, protocol=PROTOCOL))
    problems = live.judge_slow(report).problems
    assert bool(problems) == bool(expected)
    assert all(any(word in problem for problem in problems) for word in expected)


def test_ports_are_kept_for_the_servers_that_are_told_to_listen_there(
    tmp_path: Path, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the kernel's own range, where any other process may get them before a server has started."""

    def gate(_folder: Path, _lock: Lock, *arms: ArmPlan, **_: Any) -> None:
        for port in (int(arm.url.rpartition(":")[2]) for arm in arms[:2]):
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind(("127.0.0.1", port))
                server.listen()

    monkeypatch.setattr(live, "_gate", gate)
    live.two_servers(tmp_path, lock, "oracle", 1.0)


@pytest.mark.slow
def test_equal_servers_never_fail_and_a_slow_one_never_passes(tmp_path: Path, lock: Lock) -> None:
    """Whatever else runs on this machine: where it is too busy, cells are VOID."""
    equal = live.two_servers(tmp_path / "equal", lock, "oracle", 1.0)
    assert Verdict.FAIL not in {cell.verdict for cell in equal.cells if cell.primary}
    assert {cell.verdict for cell in equal.tokens} == {Verdict.PASS}
    slow = live.two_servers(tmp_path / "slow", lock, "oracle", live.SLOW_DOWN)
    assert Verdict.PASS not in {cell.verdict for cell in slow.cells if cell.primary}
