"""A whole `gate tokens` that is cut off, killed or never starts: what is left, what is said, what a resume asks."""

from __future__ import annotations

from typing import Any

import pytest

from gate.arm import Server
from gate.arm.fake import FakeServer
from gate.arm.pair import Pair
from gate.errors import ArmError, StorageError, UsageError
from gate.observe.rows import Arm, Verdict
from gate.observe.store import Store
from gate.progress import Ui
from gate.tokenrun import drive, flow, show
from tests.gate.tokenrun.conftest import GOOD, Bench
from tests.ports import free_port


def test_an_interrupted_run_goes_on_with_the_next_load(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, count = drive.Driver.run, 0

    def cut(self: drive.Driver, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == 6:
            raise KeyboardInterrupt
        return real(self, *arguments)

    monkeypatch.setattr(drive.Driver, "run", cut)
    bench.ports = free_port(), free_port()  # which nobody else has between the run and its resumption
    assert bench.run() == 130
    assert f"gate resume {bench.folder.name} goes on with the next load" in capsys.readouterr().err.splitlines()
    assert not bench.report.complete
    assert "the run was interrupted" in bench.report.not_binding_because
    assert bench.report.verdict is Verdict.INCONCLUSIVE
    before = {path.name for path in (bench.folder / "tokens").iterdir()}
    assert len(before) == 5
    with FakeServer(GOOD, bench.ports[0]), FakeServer(GOOD, bench.ports[1]):
        assert flow.resume(bench.folder, Ui()) == 0
    assert count == 6 + 3 + 16
    assert bench.report.complete
    assert "the run was interrupted" not in bench.report.not_binding_because
    with pytest.raises(UsageError, match="is complete"):
        flow.resume(bench.folder, Ui())


@pytest.mark.parametrize("arm", ["candidate", "oracle"])
@pytest.mark.parametrize("killed_at", ["ties", ".decoded", ".identities"])
def test_one_cut_while_it_asks_how_ties_are_broken_asks_the_rest(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, arm: Arm, killed_at: str
) -> None:
    """Every answer of the arm is on disk by then; a kill leaves half a file beside."""
    with monkeypatch.context() as patch:

        def cut(*arguments: Any) -> None:
            if arguments[-1] == arm:
                raise KeyboardInterrupt
            real(*arguments)

        real = flow.ties
        patch.setattr(flow, "ties", cut)
        bench.ports = free_port(), free_port()
        assert bench.run() == 130
    halves = {
        ".decoded": f"tokens/.decoded-{arm}-long-c1-s0.parquet.partial",
        ".identities": ".identities.json.partial",
    }
    if killed_at in halves:
        (bench.folder / halves[killed_at]).write_bytes(b"half")
    with FakeServer(GOOD, bench.ports[0]), FakeServer(GOOD, bench.ports[1]):
        assert flow.resume(bench.folder, Ui()) == 0
    assert len(list((bench.folder / "tokens").glob("decoded-candidate-*"))) == 2
    assert len(list((bench.folder / "tokens").glob("decoded-oracle-*"))) == 2
    assert not list(bench.folder.rglob("*.partial"))
    assert bench.report.complete


def test_what_a_server_says_it_is_is_on_disk_before_the_part_that_it_answered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one cut between the two would be complete without it."""
    events: list[str] = []
    appended, written = Store.append_identities, Store.write_part

    def append(place: Store, seen: Any) -> None:
        events.append(seen[0].arm)
        appended(place, seen)

    def write(place: Store, name: str, *rest: Any) -> None:
        events.append(name)
        written(place, name, *rest)

    monkeypatch.setattr(Store, "append_identities", append)
    monkeypatch.setattr(Store, "write_part", write)
    assert bench.run() == 0
    parts = [at for at, event in enumerate(events) if event.startswith(("answers-", "decoded-"))]
    assert len(parts) == 8 + 16 + 4
    assert all(events[at - 1] == events[at].split("-")[1] for at in parts)


def test_one_that_fails_to_start_says_why_whoever_asks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(*_arguments: object) -> None:
        raise ArmError("the candidate died at start")

    monkeypatch.setattr(Pair, "alone", dead)
    with pytest.raises(ArmError, match="the candidate died at start"):
        bench.run()
    for asked in (show.stored, show.conclude):
        with pytest.raises(StorageError, match=r"with nothing measured: the candidate died at start; .* whole plan$"):
            asked(bench.folder)
    assert not (bench.folder / "report.json").exists()


def test_one_that_ends_after_an_answer_says_why(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Pair.alone

    def no_oracle(pair: Pair, arm: Arm) -> Server:
        if arm == "oracle":
            raise ArmError("the oracle died at start")
        return alone(pair, arm)

    monkeypatch.setattr(Pair, "alone", no_oracle)
    assert bench.run() == 2
    assert show.conclude(bench.folder).not_binding_because[0] == "the oracle died at start"
    assert show.stored(bench.folder).not_binding_because[0] == "the oracle died at start"
