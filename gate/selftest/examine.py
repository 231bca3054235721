"""0 `gate selftest`: every case and every scripted gate, a line for each class, and by name what came otherwise."""

from __future__ import annotations

import contextlib
import difflib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from gate.errors import FAIL, PASS, UsageError
from gate.lock import Lock, hold
from gate.selftest import cases, live
from gate.selftest.live import Found

PLAIN_WIDTH = 120
"""Columns where standard output is a file or a pipe."""
ABOUT = {
    "pins": "what was measured is what was meant",
    "denominator": "the oracle ran as it should",
    "build": "both servers were started as asked",
    "records": "the records are this run's own, and whole",
    "request-set": "every request was asked, answered and counted",
    "first-token": "when the first token came",
    "token-accounting": "how many tokens came, and when",
    "input-length": "both arms read the same prompt",
    "failures": "what failed is not averaged in",
    "tokens": "whether the tokens agree",
    "correctness": "whether the answers are right",
    "contention": "nobody else used the machine",
    "clocks": "the clocks were the same for both arms",
    "machine": "the machine stayed the same machine",
    "memory": "memory was read, and given back",
    "caches": "nothing was answered from a cache",
    "load": "the load was delivered as planned",
    "statistics": "what the numbers allow to say",
    "verdict": "what the verdict may claim",
    "bookkeeping": "what is kept, and where",
    "http": "the scripted server's faults over HTTP: VOID, with the right reason",
}
"""Class of cases -> what holds in a good run. A gate that is a class of its own shows its figures instead."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing to try, by the name that --only takes."""

    name: str
    group: str
    title: str
    case: Path | None = None
    """A folder of tests/cases …"""
    gate: Callable[[Path, Lock], Found] | None = None
    """… or something that starts servers and leaves its records in a folder."""


def trials() -> tuple[Trial, ...]:
    """All of them, in the order they run. Raises UsageError where there are no cases."""
    found = [Trial(case.name, read["class"], read["title"], case) for case, read in map(_read, cases.folders())]
    found += [
        Trial(f"http-{name}", "http", f"a server with the fault {name}: VOID, {code}", gate=partial(live.fault, name))
        for name, code in live.FAULTS.items()
    ]
    slow = f"a candidate {live.SLOW_DOWN:g} times as slow is found"
    found.append(Trial("slow-down", "slow-down", slow, gate=live.slow_down))
    found.append(Trial("equal-arms", "equal-arms", "a server against itself: no false FAIL", gate=live.equal_arms))
    return tuple(found)


def chosen(only: Sequence[str]) -> tuple[Trial, ...]:
    """Those with these names, or of these classes; all when none is given. Raises UsageError for an unknown one."""
    every = trials()
    known = {name for trial in every for name in (trial.name, trial.group)}
    for name in only:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else "gate selftest --list shows them"
            raise UsageError(f"no case {name!r}", hint=hint)
    return tuple(trial for trial in every if not only or {trial.name, trial.group} & set(only))


def examine(only: Sequence[str] = (), say: Callable[[str], None] = print) -> int:
    """Try them and print the table; FAIL when something is not as expected, and the last lines name it.

    Raises:
        UsageError: an unknown name, or no cases.
        LockHeldError: a gate runs on this host, and the servers here would disturb its figures.
    """
    found = dict(_results(chosen(only)))
    say(_text(_table(found)))
    wrong = [(trial.name, problem) for trial, result in found.items() for problem in result.problems]
    for name, problem in wrong:
        say(f"{name}: {problem}")
    if wrong:
        names = dict.fromkeys(name for name, _ in wrong)
        say(f"{len(names)} of {len(found)} not as expected; again: gate selftest --only {wrong[0][0]}")
        return FAIL
    say(f"all {len(found)} as expected")
    return PASS


def listing() -> str:
    """Names and titles."""
    every = trials()
    width = max(len(trial.name) for trial in every)
    return "\n".join(f"{trial.name:{width}}  {trial.title}" for trial in every)


def _read(folder: Path) -> tuple[Path, dict[str, Any]]:
    return folder, cases.load(folder)


def _results(wanted: Sequence[Trial]) -> Iterator[tuple[Trial, Found]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gate-selftest-")))
        lock = stack.enter_context(hold(live.recipe())) if any(trial.gate for trial in wanted) else None
        progress = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
        task = progress.add_task("", total=len(wanted))
        for trial in wanted:
            progress.update(task, description=trial.name)
            if trial.case is not None:
                yield trial, Found("", tuple(cases.differences(cases.load(trial.case))))
            elif trial.gate is not None and lock is not None:
                yield trial, trial.gate(folder / trial.name, lock)
            progress.advance(task)


def _table(found: dict[Trial, Found]) -> Table:
    """A line for each class."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_column("", overflow="fold")
    for group in dict.fromkeys(trial.group for trial in found):
        members = [result for trial, result in found.items() if trial.group == group]
        good = sum(not result.problems for result in members)
        count = Text(f"{good} of {len(members)}", "green" if good == len(members) else "red")
        table.add_row(group, count, ABOUT.get(group) or members[0].figure)
    return table


def _text(table: Table) -> str:
    terminal = sys.stdout.isatty()
    console = Console(highlight=False) if terminal else Console(highlight=False, width=PLAIN_WIDTH, no_color=True)
    with console.capture() as printed:
        console.print(table)
    return "\n".join(line.rstrip() for line in printed.get().splitlines())
