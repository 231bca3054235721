"""0 Gates of the scripted server over HTTP: equal arms, one planted slow-down, planted faults.

The legs of `gate run`: real processes and sockets, the real client, store, checks and judge. Calibration and preflight
are left out, which ask about a machine and not about the judge, and so is the drawing of a report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import socket
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from gate import run
from gate.arm import allowed
from gate.arm.fake import FakeServer
from gate.arm.fake_script import preset
from gate.arm.pair import Pair
from gate.judge import judge
from gate.lock import Lock
from gate.observe import store
from gate.observe.machine import host, machine
from gate.observe.rows import ARMS, Arm, Verdict
from gate.plan import ArmPlan, Vocabulary, make_plan
from gate.progress import Ui
from gate.recipe import Recipe
from gate.report.model import Cell, Report
from gate.selftest.cases import codes
from gate.units import counted

GATES = 4
"""A/A gates in one self-test; each restarts both servers."""
BAND = 0.10
"""As on any machine whose A/A history nobody recorded: scheduling noise of a shared host stays inside."""
SLOW_DOWN = 1.5
"""Planted factor on every delay; the interval of three pairs lies below the floor then, band and noise included."""
PACE = "prefill_ms = 40.0\ntoken_ms = 20.0\n"
"""Slow enough that what a busy host's scheduler adds, some milliseconds, stays inside the band."""
FAULTS: dict[str, str] = {
    "one-error": "error-after-tokens",
    "drop": "failed-request",
    "no-done": "truncated-stream",
    "http-500": "failed-request",
    "garbage": "failed-request",
    "not-a-stream": "failed-request",
    "usage-missing": "usage-missing",
    "usage-lies": "output-length",
    "wrong-prompt": "prompt-length",
    "short": "output-length",
    "prefix-cache": "prefix-cache-on",
    "changes-version": "identity-changed",
    "restarts": "server-restarted",
}
"""Preset of the scripted server -> the reason code with which all of its cells must be VOID."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a gate of the self-test came to, and what of it was not expected."""

    figure: str
    problems: tuple[str, ...] = ()


def recipe(**protocol: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "schema_version": 1,
            "name": "selftest",
            "gpu": False,
            "max_model_len": 256,
            "checkpoint": {"path": "gate/selftest"},
            "workload": {"prompt_tokens": 16, "output_tokens": 8, "requests_per_stream": 2},
            "protocol": {
                "band": BAND,
                "max_spread": 0.35,
                "ready_timeout_s": 60.0,
                "request_timeout_s": 10.0,
                **protocol,
            },
        }
    )


def equal_arms(folder: Path, lock: Lock) -> Found:
    """GATES gates of the server against itself: no cell may say FAIL, and the ratios lie within the band."""
    reports = [two_servers(folder / str(k), lock, ARMS[k % 2], 1.0) for k in range(GATES)]
    return judge_equal(reports)


def judge_equal(reports: Sequence[Report]) -> Found:
    cells = [cell for report in reports for cell in report.cells if cell.primary]
    tokens = [cell for report in reports for cell in report.tokens]
    ratios = sorted(cell.ratio for cell in cells if cell.ratio is not None)
    figure = f"{counted(len(reports), 'gate')}, {_counts(cells)}"
    problems = [
        f"false FAIL of {cell.axis} at c{cell.concurrency}: {'; '.join(reason.message for reason in cell.reasons)}"
        for cell in cells
        if cell.verdict is Verdict.FAIL
    ]
    problems += [f"tokens of equal arms: {cell.verdict.value}" for cell in tokens if cell.verdict is not Verdict.PASS]
    if not ratios:
        return Found(figure, (*problems, f"no cell could be measured{_why(cells)}"))
    middle, low, high = statistics.median(ratios), 1 - BAND, 1 / (1 - BAND)
    figure += f"; ratios {ratios[0]:.3f} to {ratios[-1]:.3f}, median {middle:.3f}, expected {low:.2f} to {high:.2f}"
    if not low <= middle <= high:
        problems.append(f"median ratio of equal arms is {middle:.3f}, expected {low:.2f} to {high:.2f}")
    return Found(figure, tuple(problems))


def slow_down(folder: Path, lock: Lock) -> Found:
    """A candidate SLOW_DOWN times as slow: the gate says FAIL, and no primary axis passes."""
    return judge_slow(two_servers(folder, lock, "candidate", SLOW_DOWN))


def judge_slow(report: Report) -> Found:
    cells = [cell for cell in report.cells if cell.primary]
    ratios = [cell.ratio for cell in cells if cell.ratio is not None]
    shown = f"{statistics.median(ratios):.3f}" if ratios else "none"
    figure = f"{_counts(cells)}; median ratio {shown}, planted {1 / SLOW_DOWN:.3f}"
    problems = [f"{cell.axis} at c{cell.concurrency} says PASS" for cell in cells if cell.verdict is Verdict.PASS]
    if report.verdict is not Verdict.FAIL:
        problems.append(f"the gate says {report.verdict.value}, expected FAIL{_why(cells)}")
    return Found(figure, tuple(problems))


def _counts(cells: Sequence[Cell]) -> str:
    kinds = [(kind.value, sum(cell.verdict is kind for cell in cells)) for kind in Verdict]
    return f"{counted(len(cells), 'primary cell')}: " + ", ".join(
        f"{number} {name}" for name, number in kinds if number
    )


def _why(cells: Sequence[Cell]) -> str:
    said = [reason.message for cell in cells for reason in cell.reasons]
    return f": {said[0]}" if said else ""


def fault(name: str, folder: Path, lock: Lock) -> Found:
    """A candidate with the preset's fault: every cell VOID, and the reason is the right one."""
    with FakeServer(preset("instant")) as theirs, FakeServer(preset(name, token_ms=0.0)) as ours:
        asked = recipe(concurrency=(1,), repetitions=2)
        report = _gate(folder, lock, _arm("candidate", ours.url), _arm("oracle", theirs.url), "candidate", asked)
    return judge_fault(report, FAULTS[name])


def judge_fault(report: Report, expected: str) -> Found:
    found = codes(report)
    problems = [] if expected in found else [f"reasons are {', '.join(sorted(found)) or 'none'}, expected {expected}"]
    still = [cell.axis for cell in report.cells if cell.primary and cell.verdict is not Verdict.VOID]
    problems += [f"{axis} is not VOID" for axis in still]
    return Found(f"{report.verdict.value}, {expected}" if not problems else report.verdict.value, tuple(problems))


def two_servers(folder: Path, lock: Lock, coin: Arm, slow: float) -> Report:
    """One gate of two server processes, the candidate's delays multiplied by `slow`."""
    folder.mkdir(parents=True, exist_ok=True)
    arms = []
    with contextlib.ExitStack() as taken:
        for arm, factor in zip(ARMS, (slow, 1.0), strict=True):
            script = folder / f"{arm}.toml"
            script.write_text(f"{PACE}slow_down = {factor}\n", encoding="utf-8")
            port = taken.enter_context(_port())
            argv = (sys.executable, "-m", "gate.arm.fake", "--port", str(port), "--script", str(script))
            arms.append(_arm(arm, f"http://127.0.0.1:{port}", argv))
        candidate, oracle = arms
        return _gate(folder, lock, candidate, oracle, coin, recipe(concurrency=(1, 2), repetitions=3))


def _gate(folder: Path, lock: Lock, candidate: ArmPlan, oracle: ArmPlan, coin: Arm, asked: Recipe) -> Report:
    words = Vocabulary(size=500)
    plan = make_plan(asked, coin=coin, seed=0, candidate=candidate, oracle=oracle, vocabulary=words)
    started, ui = datetime.now(UTC), Ui(Console(file=io.StringIO()))
    place = store.Store(folder / "run")
    place.create(plan, store.RunFile(run_id="selftest", host=host(), started_at=f"{started:%FT%TZ}", machine=machine()))
    with Pair(plan, place.logs, ui.say, lock.descriptors(), place.append_start) as pair:
        run.legs(plan, plan.legs, place, pair, lock, ui)
        run.look_again(place, pair, ui)
    done = store.read_run(place.folder)
    # The server sleeps where an engine computes: what else runs on the host does not slow it, and must not void it.
    legs = tuple(leg.model_copy(update={"host_load_foreign_cpu_s": None}) for leg in done.legs)
    return judge(dataclasses.replace(done, legs=legs, finished_at=f"{datetime.now(UTC):%FT%TZ}"))


def _arm(arm: Arm, url: str, argv: tuple[str, ...] | None = None) -> ArmPlan:
    return ArmPlan(
        arm=arm,
        kind="command" if argv else "url",
        argv=argv,
        env=allowed(os.environ) if argv else {},
        url=url,
        model="",
        checkpoint="gate/selftest",
        checkpoint_digest=None,
    )


@contextlib.contextmanager
def _port() -> Iterator[int]:
    """A free one; nobody gets it by chance until the context is left, but a server that is told to listen there can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]
