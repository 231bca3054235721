"""One gate run after the other, each hit by a fault and resumed: `python -m tests.gate.survival.harness`.

Everything is imported once and every gate is a fork, so that a kill costs a third of a second. What each resumed run
left is compared with an uninterrupted one here; a difference is a line on standard output, and the exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import importlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from gate import cli, inputs, judge, shell
from gate import run as gate_run
from gate.arm.fake import FakeServer
from gate.arm.fake_script import preset
from gate.client import drive
from gate.lock import hold
from gate.observe import seals, store
from gate.observe.rows import LegRow, RequestRow
from gate.observe.rundata import RunData
from gate.recipe import load
from tests.gate.survival.faults import Fault, Kind, forked

RECIPE = """schema_version = 1
name = "fakes"
gpu = false
[checkpoint]
path = "{checkpoint}"
[workload]
prompt_tokens = 12
output_tokens = 6
[protocol]
concurrency = [1]
repetitions = 2
ready_timeout_s = 60
[candidate]
kind = "{candidate}"
[oracle]
kind = "{oracle}"
platform = "cpu"
"""
VERDICTS = (0, 1, 2, 3)
FAKE = sys.executable + " -m gate.arm.fake --port {port} --preset "
PRESETS = ("diverge", "instant")
"""The oracle is asked for its opinion at the end."""


class Stage:
    """A recipe, a results folder for each case, and what an undisturbed run comes to."""

    def __init__(self, folder: Path, checkpoint: Path, arms: tuple[str, str], port: int) -> None:
        self.folder, self.port = folder, port
        self.recipe = folder / "fakes.toml"
        text = RECIPE.format(checkpoint=checkpoint, candidate=arms[0], oracle=arms[1])
        self.recipe.write_text(text, encoding="utf-8")
        self.differences: list[str] = []
        self.kills = 0
        self.operations = 0
        self.expected: dict[str, Any] = {}

    def out(self, case: str) -> Path:
        return self.folder / case

    def gate(self, case: str, *words: str) -> int:
        """A command in this process; its words go to a file of the case."""
        sys.argv = ["gate", *words, "--out", str(self.out(case) / "results")]
        with (
            (self.folder / f"{case}.log").open("a", encoding="utf-8") as log,
            contextlib.redirect_stdout(log),
            contextlib.redirect_stderr(log),
        ):
            return shell.run(cli.app, "gate")

    def run(self, case: str) -> int:
        words = ("--recipe", str(self.recipe), "--coin", "candidate", "--port", str(self.port))
        return self.gate(case, "run", *words)

    def go_on(self, case: str) -> int:
        """What a user does after a crash: resume where a run began, else run again."""
        begun = list((self.out(case) / "results").glob("*/*/plan.json"))
        return self.gate(case, "resume") if begun else self.run(case)

    def facts(self, case: str, code: int) -> dict[str, Any]:
        (folder,) = [path.parent for path in (self.out(case) / "results").glob("*/*/plan.json")]
        data = store.read_run(folder)
        report = judge.judge(timeless(data))
        return {
            "plan": data.plan.plan_id,
            "legs": [(leg.leg_id, leg.requests, leg.failed, leg.identity_before) for leg in data.legs],
            "requests": [
                (r.leg_id, r.index, r.prompt_sha256, r.token_ids, r.error, r.completion_tokens) for r in data.requests
            ],
            "opinions": [row.model_dump() for row in (*data.repeats, *data.forced)],
            "identities": [one.digest for one in data.identities],
            "complete": seals.is_complete(folder) and data.finished_at is not None,
            "half-written": [str(path) for path in folder.rglob("*.partial")],
            "exit code is the verdict's": code == json.loads((folder / "report.json").read_bytes())["exit_code"],
            "verdict": report.verdict.value,
            "counts": report.counts,
            "cells": [cell.model_dump(mode="json") for cell in report.cells],
            "tokens": [cell.model_dump(mode="json") for cell in report.tokens],
        }

    def undisturbed(self) -> None:
        """What is expected of every other run, and how many operations there are to strike at."""
        kept, fault = self.folder / "expected.json", Fault("count", 0, self.out("whole"))

        def body() -> int:
            fault.install()
            code = self.run("whole")
            made = {"facts": self.facts("whole", code), "operations": len(fault.seen)}
            self.read("whole")
            made["modules"] = [*sys.modules]
            kept.write_text(json.dumps(made), encoding="utf-8")
            return 0

        self.must(forked(body) == 0, "whole", "the undisturbed run failed")
        made = json.loads(kept.read_bytes())
        self.expected, self.operations = made["facts"], made["operations"]
        for module in made["modules"]:  # else every fork would import them anew
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        gc.collect()
        gc.freeze()  # a collection in a fork would copy every page of this process

    def struck(self, case: str, kind: Kind, at: int, command: Callable[[str], int]) -> int:
        """Wait status of a command with a fault; below 256 it was killed."""

        def body() -> int:
            Fault(kind, at, self.out(case)).install()
            return command(case)

        status = forked(body)
        self.kills += os.WIFSIGNALED(status)
        return status

    def killed_after(self, case: str, seconds: float, command: Callable[[str], int]) -> bool:
        def body() -> int:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            return command(case)

        killed = os.WIFSIGNALED(forked(body))
        self.kills += killed
        return killed

    def finish(self, case: str) -> None:
        """Whatever is there is read without a fault of ours; then the run is brought to its end and compared."""

        def body() -> int:
            self.read(case)
            code = self.go_on(case)
            if code == 64 and "is complete" in (self.folder / f"{case}.log").read_text(encoding="utf-8"):
                code = self.gate(case, "report")  # it was killed after its last operation
            self.must(code in VERDICTS, case, f"resume ended with {code}")
            found = json.loads(json.dumps(self.facts(case, code)))
            for what, expected in self.expected.items():
                self.must(found[what] == expected, case, f"{what}: found {found[what]!r}, expected {expected!r}")
            with hold(load(str(self.recipe))) as lock:
                self.must(lock.held(), case, "the lock is not free")
            self.must(not orphans(self.port), case, f"left running: {orphans(self.port)}")
            said = (self.folder / f"{case}.log").read_text(encoding="utf-8")
            self.must("Traceback" not in said, case, "a traceback")
            return min(len(self.differences), 1)

        self.must(forked(body) in (0, 256), case, "the resumed gate crashed")
        self.must(not (self.folder / f"{case}.bad").exists(), case, "see above")

    def read(self, case: str) -> None:
        for command in ("list", "show", "report"):
            code = self.gate(case, command)
            self.must(code in (*VERDICTS, 64, 69), case, f"gate {command} ended with {code}")

    def must(self, holds: bool, case: str, what: str) -> None:
        if not holds:
            self.differences.append(f"{case}: {what}")
            (self.folder / f"{case}.bad").touch()
            print(f"{case}: {what[:600]}", flush=True)


def timeless(run: RunData) -> RunData:
    """The same records with the times of one fixed schedule, so that two runs are judged alike."""
    start = {leg.leg_id: 10**10 * (leg.order + 1) for leg in run.plan.legs}
    requests: list[RequestRow] = []
    for row in run.requests:
        before = requests[-1].end_ns if requests and requests[-1].leg_id == row.leg_id else None
        sent = start[row.leg_id] if before is None else before + 1000
        stamps = tuple(sent + 10**6 * (k + 20) for k in range(len(row.token_times_ns)))
        times = {"sent_ns": sent, "first_token_ns": stamps[0], "token_times_ns": stamps}
        requests.append(row.model_copy(update={**times, "last_token_ns": stamps[-1], "end_ns": stamps[-1]}))
    ends = {row.leg_id: row.end_ns for row in requests}
    legs = [
        leg.model_copy(
            update={
                "start_ns": start[leg.leg_id],
                "end_ns": ends[leg.leg_id],
                "client_cpu_s": 0.0,
                "client_loop_lag_p99_ms": 0.0,
                "host_load_foreign_cpu_s": None,
                "other_arm_cpu_s": None,
                "server_start_id": leg.arm,
                "server_start_id_after": leg.arm,
                **{name: None for name in LegRow.model_fields if name.endswith("_bytes")},
            }
        )
        for leg in run.legs
    ]
    return dataclasses.replace(run, requests=tuple(requests), legs=tuple(legs), telemetry=(), preflight=())


def orphans(port: int) -> list[str]:
    """Servers of this harness that still run."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if "gate.arm.fake" in words and {str(port), str(port + 1)} & set(words):
            found.append(f"{process.pid} {' '.join(words)}")
    return found


@contextlib.contextmanager
def attached() -> Iterator[tuple[str, str]]:
    """Two servers in a process of their own; their URLs."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with FakeServer(preset(PRESETS[0])) as one, FakeServer(preset(PRESETS[1])) as two:
            os.write(writer, json.dumps([one.url, two.url]).encode())
            threading.Event().wait()
    os.close(writer)
    try:
        one, two = json.loads(os.read(reader, 4096))
        yield one, two
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def every_operation(stage: Stage, dice: random.Random, stride: int) -> None:
    """Killed before each stride-th operation of a run; each resumed run is killed up to three times more on its way."""
    for at in range(1 + dice.randrange(stride), stage.operations + 1, stride):
        case = f"op{at}"
        stage.struck(case, "kill", at, stage.run)
        for _ in range(3):
            if not os.WIFSIGNALED(stage.struck(case, "kill", dice.randint(1, stage.operations // 3), stage.go_on)):
                break
        stage.finish(case)


def random_times(stage: Stage, dice: random.Random, count: int) -> None:
    """How long a run takes depends on what else the machine does: one that was over before its kill is not counted."""
    began = time.monotonic()
    forked(lambda: stage.run("timed"))
    whole = time.monotonic() - began
    for k in range(4 * count):
        if stage.kills == count:
            return
        case = f"time{k}"
        if stage.killed_after(case, dice.uniform(0.01, whole), stage.run):
            stage.finish(case)
        else:
            whole *= 0.8


def full_disk(stage: Stage, stride: int, first: int) -> None:
    """Nothing can be written from the n-th write on; then there is room again."""
    for at in range(first, stage.operations + 1, stride):
        case = f"full{at}"
        status = stage.struck(case, "full", at, stage.run)
        code = os.waitstatus_to_exitcode(status)
        if code in VERDICTS:  # fewer writes than operations: none was left to fail
            return
        stage.must(code == 69, case, f"a full disk ended with {code}")
        stage.finish(case)


def servers_of_its_own(stage: Stage, dice: random.Random, count: int) -> None:
    """Killed with servers running; nothing of them may be left when the lock is free again.

    A run has a few operations more or less than the one they were counted in: where none was left to strike at, again.
    """
    for k in range(4 * count):
        if stage.kills == count:
            return
        case = f"own{k}"
        stage.struck(case, "kill", dice.randint(1, stage.operations), stage.run)
        with hold(load(str(stage.recipe))):
            stage.must(not orphans(stage.port), case, f"left running: {orphans(stage.port)}")
        stage.finish(case)


def prepare() -> None:
    """Out of the way: what has tests of its own, and what costs time in every fork."""
    gate_run.calibrate = lambda: None  # type: ignore[assignment]
    gate_run.preflight = lambda *_: ()  # type: ignore[assignment]
    inputs.source = lambda: None  # a commit to the working tree meanwhile is no difference
    drive.quiet_gc = contextlib.nullcontext  # times are not looked at here, and it costs half of a run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gate.survival.harness", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("mode", choices=("operations", "times", "full", "servers"))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    os.environ |= {"GATE_LOCK_DIR": str(asked.folder / "locks"), "GATE_HOST": "box", "COLUMNS": "120"}
    dice = random.Random(asked.seed)
    prepare()
    with contextlib.ExitStack() as stack:
        own = asked.mode == "servers"
        arms = (FAKE + PRESETS[0], FAKE + PRESETS[1]) if own else stack.enter_context(attached())
        stage = Stage(asked.folder, asked.checkpoint, arms, asked.port)
        stage.undisturbed()
        if asked.mode == "operations":
            every_operation(stage, dice, asked.stride)
        elif asked.mode == "times":
            random_times(stage, dice, asked.count)
        elif asked.mode == "full":
            full_disk(stage, asked.stride, 1 + dice.randrange(asked.stride))
        else:
            servers_of_its_own(stage, dice, asked.count)
    print(json.dumps({"operations": stage.operations, "kills": stage.kills, "differences": len(stage.differences)}))
    return 1 if stage.differences else 0


if __name__ == "__main__":
    sys.exit(main())
