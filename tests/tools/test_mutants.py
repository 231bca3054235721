"""tools/mutants.py: what it says and writes of a mutant that no test notices, and that no quick one survives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def mutants(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools/mutants.py"), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_predicates_made_constant_and_the_verdicts_conditions_fail_some_test() -> None:
    done = mutants("--quick")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_survivor_is_named_with_its_place_and_its_change(tmp_path: Path) -> None:
    """The tests of another check notice a check that always finds something, and not one that never does."""
    out = tmp_path / "new" / "mutants.json"
    tests = "tests/gate/checks/test_lock_lost.py"
    done = mutants("gate/checks/spread.py", "--quick", "--out", str(out), "--tests", tests)
    assert done.returncode == 1, done.stderr
    assert "2 of 2 mutants tried: 1 survived" in done.stdout
    text = (ROOT / "gate/checks/spread.py").read_text()
    line = 1 + text[: text.index("    protocol =")].count("\n")
    assert f"gate/checks/spread.py:{line}: survived (never)" in done.stdout
    assert "+    return\n" in done.stdout
    record = json.loads(out.read_text())
    counts = {"mutants": 2, "equivalent": 0, "killed": 1, "survived": 1, "not_tried": 0}
    assert record["files"] == {"gate/checks/spread.py": counts}
    assert record == record | counts
    (survivor,) = record["survivors"]
    assert (survivor["file"], survivor["line"], survivor["kind"]) == ("gate/checks/spread.py", line, "never")
    assert survivor["after"].strip().splitlines()[0] == "return"
    assert (record["targets"], record["tests"], record["quick"]) == (["gate/checks/spread.py"], [tests], True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert record["commit"] == (head.strip() or None)


def test_nothing_to_change_is_said() -> None:
    done = mutants("gate/no_such.py")
    assert done.returncode == 1
    assert "nothing to change in gate/no_such.py" in done.stderr


UNSEEN = """
import grimp
from mutants import Bench
from mutations import mutants

bench = object.__new__(Bench)
bench.graph, bench.lately = grimp.build_graph("gate", cache_dir=None), {}
reached = {"gate/metrics/__init__.py": {"tests/gate/a.py::reaches": [2]}}
bench.base = {"lines": reached, "seconds": {"tests/gate/a.py::reaches": 0.1, "tests/gate/b.py::other": 0.2}}
source = "def seen():\\n    return 1\\n\\n\\ndef unseen():\\n    return 2\\n"
for mutant in mutants("gate/metrics/__init__.py", source):
    if mutant.kind == "return":
        print(mutant.line, *(test for group in bench.groups(mutant, None) for test in group.ids))
"""


def test_any_test_may_notice_after_those_that_are_seen_to_reach_it() -> None:
    """A function that an import calls, as that of the latency axes: with no test to try, each mutant survived."""
    command = [sys.executable, "-c", UNSEEN]
    done = subprocess.run(command, cwd=ROOT / "tools", capture_output=True, text=True, check=False)
    both = "tests/gate/a.py::reaches tests/gate/b.py::other"
    assert done.stdout == f"2 {both}\n6 {both}\n", done.stderr


COUNTED = """
import json
from mutants import summary
from mutations import mutants

found = mutants("gate/a.py", "def one():\\n    return 1\\n") + mutants("gate/b.py", "TWO = 2\\n")
kinds = [(mutant.path, mutant.kind) for mutant in found]
print(json.dumps([kinds, summary(found, found[:1], [(found[1], "tests/a.py::a"), (found[3], None)])]))
"""


def test_what_was_not_tried_is_counted_apart() -> None:
    """Of an interrupted run: neither killed nor survived."""
    command = [sys.executable, "-c", COUNTED]
    done = subprocess.run(command, cwd=ROOT / "tools", capture_output=True, text=True, check=False)
    kinds, told = json.loads(done.stdout or done.stderr)
    assert [path for path, _ in kinds] == ["gate/a.py"] * 3 + ["gate/b.py"] * 2
    each = ("mutants", "equivalent", "killed", "survived", "not_tried")
    assert [told[name] for name in each] == [5, 1, 1, 1, 2]
    assert [[told["files"][path][name] for name in each] for path in ("gate/a.py", "gate/b.py")] == [
        [3, 1, 1, 0, 1],
        [2, 0, 0, 1, 1],
    ]
    assert [survivor["file"] for survivor in told["survivors"]] == ["gate/b.py"]


ORDER = """
import grimp
from mutants import Bench
from mutations import mutants

bench = object.__new__(Bench)
bench.graph, bench.lately = grimp.build_graph("gate", cache_dir=None), {}
own, other = "tests/gate/stats/test_holm.py", "tests/gate/test_judge.py"
tests = [f"{other}::{name}" for name in "ab"] + [f"{own}::{name}" for name in "cd"]
bench.base = {
    "lines": {"gate/stats/holm.py": {test: [2] for test in tests}},
    "seconds": {test: 1.0 - k / 10 for k, test in enumerate(tests)},
}
(mutant,) = [one for one in mutants("gate/stats/holm.py", "def seen():\\n    return 1\\n") if one.kind == "return"]


def tell(killer):
    print(*("".join(test[-1] for test in group.ids) for group in bench.groups(mutant, killer)))


tell(None)
tell(tests[0])
bench.noticed(mutant, tests[0])
bench.noticed(mutant, tests[1])
bench.noticed(mutant, None)
bench.noticed(mutant, "process: SIGALRM")
tell(None)
bench.noticed(mutant, tests[0])
tell(tests[2])
(mutant,) = [one for one in mutants("gate/stats/median.py", mutant.source.replace("None", "1")) if one.kind == "return"]
tell(None)
(mutant, _) = mutants("gate/stats/median.py", "ONE = 1\\n")
tell(None)
"""


def test_the_likeliest_tests_are_tried_first() -> None:
    """The one that failed before alone; those that failed lately, on such a line of another module too; the module's
    own, quick ones first; the others. Of a constant, which no test is seen to reach, all of them."""
    command = [sys.executable, "-c", ORDER]
    done = subprocess.run(command, cwd=ROOT / "tools", capture_output=True, text=True, check=False)
    assert done.stdout == "dcba\na dcb\nbadc\nc abd\nabdc\ndcba\n", done.stderr


MEASURED = """
import sys
from pathlib import Path

import mutants
from mutants import Bench

mutants.ROOT = Path(sys.argv[1])
bench = object.__new__(Bench)
bench.cache, bench.code, bench.targets, bench.tests = {}, "code", [], ["a.py", "b.py"]


def measure(tests, targets):
    failed = [test for test in tests if "fails" in (mutants.ROOT / test).read_text()]
    ran = {f"{test}::t": float(len(tests)) for test in tests}
    return {"code": int(bool(failed)), "failed": failed, "seconds": ran, "lines": {"x.py": dict.fromkeys(ran, [1])}}


mutants.measure = measure


def tell():
    bench.measured()
    print(sorted(bench.base["seconds"].items()), sorted(bench.base["lines"]["x.py"]))


for test in bench.tests:
    (mutants.ROOT / test).write_text(test)
tell()
(mutants.ROOT / "b.py").write_text("other")
tell()
bench.tests = ["b.py"]
tell()
bench.code = "changed"
bench.tests = ["a.py", "b.py"]
tell()
(mutants.ROOT / "a.py").write_text("fails")
tell()
"""


def test_only_test_files_that_changed_are_measured_again(tmp_path: Path) -> None:
    """All of them where the code did; one that fails on the unchanged code ends it."""
    command = [sys.executable, "-c", MEASURED, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT / "tools", capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "[('a.py::t', 2.0), ('b.py::t', 2.0)] ['a.py::t', 'b.py::t']",
        "[('a.py::t', 2.0), ('b.py::t', 1.0)] ['a.py::t', 'b.py::t']",
        "[('b.py::t', 1.0)] ['b.py::t']",
        "[('a.py::t', 2.0), ('b.py::t', 2.0)] ['a.py::t', 'b.py::t']",
    ]
    assert "the unchanged tests fail, so that nothing can be told of mutants: a.py" in done.stderr
    assert done.returncode == 1
