"""Whole runs of scripted servers in a test: a recipe of two commands, a results folder, and nothing left behind."""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path
from typing import Any

import psutil

from gate import run as gate_run
from gate.arm.fake import FakeServer
from gate.arm.fake_script import preset
from gate.conclude import stored
from gate.inputs import Asked
from gate.lock import hold
from gate.progress import Ui
from gate.recipe import load
from gate.report.model import Report
from gate.runs import find
from tests.ports import free_port

RECIPE = """
schema_version = 1
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
request_timeout_s = {timeout_s}
[candidate]
kind = "{candidate}"
[oracle]
kind = "{oracle}"
platform = "cpu"
"""


def fake(name: str = "instant") -> str:
    return f"{sys.executable} -m gate.arm.fake --port {{port}} --preset {name}"


def children(word: str) -> list[str]:
    """Command lines with the word, of this process's descendants; one that ends while it is looked at is none."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # of which a zombie is one
            found.append(" ".join(child.cmdline()))
    return [line for line in found if word in line]


def interrupted(*_arguments: object, **_named: object) -> None:
    raise KeyboardInterrupt


class Bench:
    """A results folder of its own, and runs into it."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        self.out = folder / "results"
        self.recipe = folder / "fakes.toml"
        self.checkpoint = checkpoint
        self.port = free_port()

    def asked(self, candidate: str, oracle: str, timeout_s: float = 30, **changes: Any) -> Asked:
        text = RECIPE.format(checkpoint=self.checkpoint, candidate=candidate, oracle=oracle, timeout_s=timeout_s)
        self.recipe.write_text(text, encoding="utf-8")
        return Asked(recipe=str(self.recipe), port=self.port, coin="candidate", **changes)

    def run(self, candidate: str, oracle: str | None = None, **changes: Any) -> int:
        """Both arms started by the gate."""
        return gate_run.run(self.asked(candidate, oracle or fake(), **changes), self.out, Ui())

    def attached(self, candidate: str = "instant", **changes: Any) -> int:
        """Both arms in this process: quick, for what has nothing to do with starting servers."""
        with FakeServer(preset(candidate)) as ours, FakeServer(preset("instant")) as theirs:
            return self.run(ours.url, theirs.url, **changes)

    @property
    def folder(self) -> Path:
        return find(None, self.out)

    @property
    def report(self) -> Report:
        return stored(self.folder)

    def assert_nothing_is_left(self) -> None:
        """No server, port or lock outlives a run, however it went."""
        for port in (self.port, self.port + 1):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        assert not children("gate.arm.fake")
        with hold(load(str(self.recipe))) as lock:
            assert lock.held()
