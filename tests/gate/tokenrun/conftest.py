"""A bench of two fake servers for whole runs of `gate tokens`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gate.arm.fake import FakeServer
from gate.arm.fake_script import Script, preset
from gate.inputs import Asked
from gate.progress import Ui
from gate.runs import find
from gate.tokenrun import flow, show
from gate.tokenrun.model import KindCell, TokenReport

RECIPE = """
schema_version = 1
name = "fakes"
gpu = false
[checkpoint]
path = "{checkpoint}"
[workload]
prompt_tokens = 12
output_tokens = 8
[protocol]
concurrency = [1, 2]
request_timeout_s = 20
[candidate]
kind = "{candidate}"
[oracle]
kind = "{oracle}"
platform = "cpu"
"""
GOOD = preset("good", token_ms=0.2)


class Bench:
    def __init__(self, place: Path, checkpoint: Path) -> None:
        self.out, self.checkpoint = place / "results", checkpoint
        self.recipe = place / "fakes.toml"
        self.ports = 0, 0
        """Of the candidate and of the oracle; 0: any."""

    def run(
        self, candidate: Script = GOOD, oracle: Script = GOOD, conc: str = "1,2", repeats: int = 2, seeds: int = 2
    ) -> int:
        with FakeServer(candidate, self.ports[0]) as ours, FakeServer(oracle, self.ports[1]) as theirs:
            self.recipe.write_text(
                RECIPE.format(checkpoint=self.checkpoint, candidate=ours.url, oracle=theirs.url), encoding="utf-8"
            )
            self.asked = Asked(recipe=str(self.recipe), concurrency=conc, coin="candidate")
            code = flow.run(self.asked, repeats, seeds, self.out, Ui())
            self.bodies = {"candidate": list(ours.requests), "oracle": list(theirs.requests)}
            return code

    @property
    def folder(self) -> Path:
        return find(None, self.out)

    @property
    def report(self) -> TokenReport:
        return show.stored(self.folder)

    def cell(self, kind: str, concurrency: int) -> KindCell:
        return next(c for c in self.report.cells if (c.kind, c.concurrency) == (kind, concurrency))

    def codes(self) -> set[str]:
        return {reason.code for cell in self.report.cells for reason in cell.reasons}


@pytest.fixture
def bench(tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("GATE_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setattr(flow, "preflight", lambda _plan, _out: ())
    return Bench(tmp_path, tiny_checkpoint)
