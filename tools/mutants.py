"""Mutation tests of what judges, a gate's run and what stands beside it: every mutant must fail some test.

    python tools/mutants.py [PATH …] [--quick] [--tests PATH …] [--jobs N] [--fresh] [--out FILE]

Not mutmut 3: it changes function bodies only, and half of what decides here are thresholds at the top of a module. Not
cosmic-ray: an interpreter for each mutant costs seconds. Here everything is imported once; each mutant is a fork that
imports the changed module and its dependants again and runs the tests that reach the changed statement, those of the
module's own test file first. Results are kept by content in build/mutants.json, so that Ctrl-C loses nothing. What no
test can notice is in tools/equivalent_mutants.toml, each with its reason. --out writes what came out as JSON: commit,
targets, counts for each file, survivors. Exit code 1 where one survives.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import hashlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grimp
from mutant_trials import ROOT, Group, in_fork, measure, module_of, trial
from mutations import Mutant, mutants
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

TARGETS = (
    *("gate/verdict.py", "gate/cells.py", "gate/bounds.py", "gate/binding.py", "gate/power.py"),
    *("gate/stats", "gate/tokens", "gate/metrics", "gate/checks"),
    *("gate/profile/checks", "gate/profile/levers.py"),
    *("gate/compare/decide.py", "gate/startup/judge.py", "gate/sweep/judge.py"),
)
TESTS = (
    *("tests/gate/checks", "tests/gate/stats", "tests/gate/tokens", "tests/gate/metrics"),
    *("tests/gate/test_judge*.py", "tests/gate/test_verdict*.py", "tests/gate/test_cells*.py"),
    *(
        "tests/gate/test_apart.py",
        "tests/gate/test_bounds.py",
        "tests/gate/test_binding*.py",
        "tests/gate/test_power.py",
        "tests/gate/test_looks*.py",
    ),
    *("tests/gate/calibration/test_fit.py", "tests/gate/test_cases*.py"),
    *("tests/gate/profile/checks", "tests/gate/profile/test_levers*.py"),
    *("tests/gate/compare/test_decide.py", "tests/gate/startup/test_judge.py", "tests/gate/sweep/test_judge.py"),
)
"""Tests of pure functions: one that starts a server would cost every mutant seconds."""
SIMULATIONS = ("tests/gate/stats/test_error_rates.py",)
"""Left out: thousands of grids to tell one rate; what they rest on has tests of its own."""
ALSO = (
    *("tests/conftest.py", "tests/gate/conftest.py", "tests/cases", "tools/mutant_trials.py"),
    *("tests/gate/profile/tables.py", "tests/gate/profile/fixtures", "tests/gate/profile/checks/conftest.py"),
)
"""What those tests read beside the gate itself."""
PRELOADED = (
    "gate.judge",
    "gate.looks",
    "gate.selftest.cases",
    "gate.report.html",
    "gate.report.plots",
    "hypothesis",
    "scipy.stats",
    "synthetic_configs",
)
FIRST = 12
"""Tests tried before all others, or all of the module's own test file; most mutants go no further."""
LATELY = 4
"""Tests that failed on the last mutants of a module, or of such a line in another: they often fail on the next."""
SAVE_EVERY = 100
EQUIVALENT = ROOT / "tools" / "equivalent_mutants.toml"
CACHE = ROOT / "build" / "mutants.json"


def paths_of(patterns: Sequence[str], names: str = "*.py") -> list[str]:
    """Files, from the root; a folder stands for all in it."""
    roots = [root for pattern in patterns for root in ROOT.glob(pattern)]
    found = {path for root in roots for path in (root.rglob(names) if root.is_dir() else [root])}
    return sorted(str(path.relative_to(ROOT)) for path in found if path.is_file() and "__pycache__" not in path.parts)


def digest(paths: Sequence[str]) -> str:
    texts = [hashlib.sha256((ROOT / path).read_bytes()).hexdigest() for path in paths]
    return hashlib.sha256("\n".join((*paths, *texts)).encode()).hexdigest()


@dataclass
class Bench:
    """Everything that is the same for all mutants."""

    targets: list[str]
    tests: list[str]
    cache: dict[str, Any] = field(default_factory=dict)
    base: dict[str, Any] = field(default_factory=dict)
    kept: int = 0
    """Answers of an earlier run on which nothing has changed since."""
    lately: dict[str, list[str]] = field(default_factory=dict)
    """Module, or line of text -> the tests that failed last on a mutant of it, the last one first."""

    def __post_init__(self) -> None:
        self.graph = grimp.build_graph("gate", cache_dir=None)
        seen = {module_of(path) for path in self.targets} | {name for name in PRELOADED if name.startswith("gate")}
        seen |= {name for module in tuple(seen) for name in self.graph.find_upstream_modules(module)}
        code = [path for path in paths_of(["gate"]) if module_of(path) in seen]
        self.code = digest([*code, *paths_of(ALSO, "*"), *paths_of(["tests/gate/*/conftest.py"])])
        """Of all that a verdict on a mutant rests on, apart from the tests themselves."""

    def save(self) -> None:
        CACHE.parent.mkdir(exist_ok=True)
        part = CACHE.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(self.cache))
        part.replace(CACHE)

    def evidence(self, killer: str | None) -> str:
        """What a kept result depends on: a killer on its own file, a survival on every test."""
        file = (killer or "").partition("::")[0]
        return self.code + digest([file] if file in self.tests else self.tests)

    def measured(self) -> None:
        """Which test reaches which line: asked of the test files that changed since, or of all of them where the code
        did. Leaves the program where a test fails."""
        key = self.code + digest(self.targets)
        kept = self.cache.get("baseline", {})
        if kept.get("key") != key:
            kept = {"key": key, "files": {}}
        files = {path: kept["files"].get(path, {}) for path in self.tests}
        stale = [path for path, of in files.items() if of.get("digest") != digest([path])]
        if stale:
            with tempfile.TemporaryDirectory() as folder:
                answer = Path(folder) / "baseline.json"
                os.waitpid(in_fork(lambda: measure(stale, self.targets), answer), 0)
                told = json.loads(answer.read_text())
            if told["code"]:
                failed = ", ".join(told["failed"]) or f"pytest said {told['code']}"
                sys.exit(f"the unchanged tests fail, so that nothing can be told of mutants: {failed}")
            files |= by_file(told, stale)
        self.cache["baseline"] = {"key": key, "files": kept["files"] | files}
        self.base = {"seconds": {}, "lines": {}}
        for of in files.values():
            self.base["seconds"] |= of["seconds"]
            for target, lines in of["lines"].items():
                self.base["lines"].setdefault(target, {}).update(lines)

    def dependants(self, mutant: Mutant) -> list[str]:
        """The mutant's module and every loaded one that would hold something of the unchanged one."""
        module = module_of(mutant.path)
        return [module, *sorted(self.graph.find_downstream_modules(module) & sys.modules.keys())]

    def noticed(self, mutant: Mutant, killer: str | None) -> None:
        if killer in self.base.get("seconds", ()):
            for of in (mutant.before, mutant.path):
                others = [test for test in self.lately.get(of, []) if test != killer]
                self.lately[of] = [killer, *others][:LATELY]

    def groups(self, mutant: Mutant, killer: str | None) -> list[Group]:
        """The tests to try, the likeliest first."""
        own = f"test_{Path(mutant.path).stem}"
        lately = [test for of in (mutant.before, mutant.path) for test in self.lately.get(of, [])]
        if not self.base:  # quick: whole files, nothing was measured
            near = tuple(path for path in self.tests if Path(path).stem.startswith(own))
            rest = tuple(path for path in self.tests if path not in near)
            return [Group(files) for files in (near, rest) if files]
        reached = self.base["lines"].get(mutant.path, {})
        first, last = mutant.statement
        names = {test for test, lines in reached.items() if any(first <= line <= last for line in lines)}
        if mutant.at_import or not names:
            # A constant can travel through a list or a registry that no test is seen to reach it by, and a function
            # that only an import calls is reached by no test.
            names = set(self.base["seconds"])

        def rank(test: str) -> tuple[bool, int, bool, bool, float]:
            file = Path(test.partition("::")[0])
            apart = str(file.parent) != f"tests/{Path(mutant.path).parent}"
            since = lately.index(test) if test in lately else 2 * LATELY
            return test != killer, since, not file.stem.startswith(own), apart, self.base["seconds"][test]

        ranked = sorted(names & self.base["seconds"].keys(), key=rank)
        # A function that an import calls may be reached by tests that never see what the import made of it.
        others = sorted(self.base["seconds"].keys() - names, key=rank)
        before = [test for test in ranked if test == killer]
        rest = ranked[len(before) :]
        first = max(FIRST, sum(Path(test.partition("::")[0]).stem.startswith(own) for test in rest))
        parts = (before, rest[:first], rest[first:], others)
        return [Group(tuple({t.partition("::")[0]: 0 for t in part}), tuple(part)) for part in parts if part]


def by_file(told: dict[str, Any], files: Sequence[str]) -> dict[str, Any]:
    """What was measured, for each test file."""
    made: dict[str, Any] = {path: {"digest": digest([path]), "seconds": {}, "lines": {}} for path in files}
    for test, seconds in told["seconds"].items():
        made[test.partition("::")[0]]["seconds"][test] = seconds
    for target, tests in told["lines"].items():
        for test, lines in tests.items():
            made[test.partition("::")[0]]["lines"].setdefault(target, {})[test] = lines
    return made


def outcomes(bench: Bench, todo: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, str | None]]:
    """Each mutant with the test that fails on it, or None; as they come. Ends its children whatever happens."""
    kept: dict[str, Any] = bench.cache.setdefault("results", {})
    running: dict[int, tuple[Mutant, str, Path]] = {}
    waiting = list(reversed(todo))
    with tempfile.TemporaryDirectory() as folder:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    mutant = waiting.pop()
                    key = hashlib.sha256(f"{mutant.path}\n{mutant.source}".encode()).hexdigest()
                    before = kept.get(key, {})
                    if before and before["evidence"] == bench.evidence(before["killer"]):
                        bench.kept += 1
                        yield mutant, before["killer"]
                        continue
                    groups = bench.groups(mutant, before.get("killer"))
                    answer = Path(folder) / f"{key}.json"
                    work = (mutant, bench.dependants(mutant), groups)
                    running[in_fork(lambda work=work: trial(*work), answer)] = (mutant, key, answer)
                if not running:
                    break
                pid, status = os.wait()
                mutant, key, answer = running.pop(pid)
                killer = json.loads(answer.read_text()) if answer.exists() else f"process: {ended(status, mutant)}"
                kept[key] = {"killer": killer, "evidence": bench.evidence(killer)}
                bench.noticed(mutant, killer)
                yield mutant, killer
        finally:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def ended(status: int, mutant: Mutant) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    raise SystemExit(f"{mutant.path}:{mutant.line}: the trial of {mutant.after.strip()!r} failed by itself")


def equivalent() -> dict[tuple[str, str, str], str]:
    """(file, lines before, lines after) -> why no test can notice."""
    entries = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["mutant"]
    return {(e["file"], squeezed(e["before"]), squeezed(e["after"])): e["reason"] for e in entries}


def change(mutant: Mutant) -> tuple[str, str, str]:
    return mutant.path, squeezed(mutant.before), squeezed(mutant.after)


def squeezed(lines: str) -> str:
    return "\n".join(line.strip() for line in lines.strip().splitlines())


def is_quick(mutant: Mutant) -> bool:
    """The checks' predicates made constant, and every condition of the verdict."""
    return mutant.kind in ("never", "always") or (mutant.path == "gate/verdict.py" and mutant.kind == "condition")


def shown(mutant: Mutant) -> str:
    lines = [f"-{line}" for line in mutant.before.splitlines()] + [f"+{line}" for line in mutant.after.splitlines()]
    return "\n".join((f"{mutant.path}:{mutant.line}: survived ({mutant.kind})", *lines))


def summary(
    found: Sequence[Mutant], known: Sequence[Mutant], answers: Sequence[tuple[Mutant, str | None]]
) -> dict[str, Any]:
    """Counts, of all and for each file, and the survivors by place and change. What was not tried is its own count."""
    survivors = [mutant for mutant, killer in answers if killer is None]
    counts = {
        "mutants": Counter(mutant.path for mutant in found),
        "equivalent": Counter(mutant.path for mutant in known),
        "killed": Counter(mutant.path for mutant, killer in answers if killer is not None),
        "survived": Counter(mutant.path for mutant in survivors),
    }
    counts["not_tried"] = counts["mutants"] - counts["equivalent"] - counts["killed"] - counts["survived"]
    return {
        **{name: count.total() for name, count in counts.items()},
        "survivors": [
            {"file": m.path, "line": m.line, "kind": m.kind, "before": m.before, "after": m.after} for m in survivors
        ],
        "files": {path: {name: count[path] for name, count in counts.items()} for path in sorted(counts["mutants"])},
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument(
        "path", nargs="*", default=TARGETS, help="files or folders to change; all that judges if left out"
    )
    parser.add_argument("--quick", action="store_true", help="only predicates made constant: what make test runs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files, folders or patterns that must notice")
    parser.add_argument("--fresh", action="store_true", help="forget kept results")
    parser.add_argument("--out", type=Path, help="a JSON file for commit, targets, counts for each file and survivors")
    asked = parser.parse_args(argv)
    out = asked.out and asked.out.absolute()
    began, began_s = datetime.datetime.now(datetime.UTC), time.monotonic()
    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    targets = paths_of(asked.path)
    if not targets:
        sys.exit(f"nothing to change in {' '.join(asked.path)}; expected files or folders such as {TARGETS[0]}")
    sys.path.insert(0, str(ROOT))
    for name in PRELOADED:
        importlib.import_module(name)
    version = importlib.import_module("gate.observe.source").source()
    tests = [p for p in paths_of(asked.tests) if Path(p).name.startswith("test_") and p not in SIMULATIONS]
    bench = Bench(paths_of(TARGETS), tests)
    if CACHE.exists() and not asked.fresh:
        bench.cache = json.loads(CACHE.read_text())
    found = [m for path in targets for m in mutants(path, (ROOT / path).read_text()) if is_quick(m) or not asked.quick]
    allowed = equivalent()
    known = [m for m in found if change(m) in allowed]
    todo = [m for m in found if change(m) not in allowed]
    answers: list[tuple[Mutant, str | None]] = []
    survived = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    interrupted = False
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            if not asked.quick:
                bench.measured()
            gc.freeze()  # a collection in a child would copy every page of the parent
            task = progress.add_task("mutants", total=len(todo))
            for mutant, killer in outcomes(bench, todo, max(1, asked.jobs)):
                answers.append((mutant, killer))
                if killer is None:
                    survived += 1
                    print(shown(mutant), end="\n\n", flush=True)
                progress.update(task, advance=1, description=f"mutants, {survived} survived")
                if len(answers) % SAVE_EVERY == 0:
                    bench.save()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        bench.save()
    there = {change(m) for m in found}
    stale = [key for key in allowed if key[0] in targets and key not in there and not asked.quick]
    for file, before, _after in stale:
        print(f"{file}: no mutant changes {before!r} that way: remove it from {EQUIVALENT.relative_to(ROOT)}")
    print(f"{len(answers)} of {len(todo)} mutants tried: {survived} survived; {len(known)} known equivalent")
    if out is not None:
        record = {
            "commit": version and version.commit,
            "dirty": version and version.dirty,
            "began_at": began.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - began_s),
            "targets": list(asked.path),
            "tests": list(asked.tests),
            "quick": asked.quick,
            "answers_of_an_earlier_run": bench.kept,
            **summary(found, known, answers),
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if interrupted:
        print("interrupted; make mutants goes on from here")
        return 130
    return 1 if survived or stale else 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
