"""Both arms over a run: who is up when, one restart an arm, and GPU memory that must come back."""

from __future__ import annotations

import itertools
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from gate import lock, messages
from gate import recipe as recipes
from gate.arm import pair as pairs
from gate.errors import ArmError, OracleError
from gate.observe.gpu import Gpu
from gate.observe.rows import ARMS, Arm, LegRow
from gate.plan import ArmPlan, Plan, PlannedLeg, Vocabulary, make_plan


@dataclass
class Stage:
    """Stands where servers would be: what was started and stopped, in order."""

    events: list[str] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)

    def start(self, plan: ArmPlan, _log: Path, _timeout_s: float) -> FakeServer:
        self.events.append(f"+{plan.arm}")
        return FakeServer(self, plan.arm, next(self.numbers))


@dataclass
class FakeServer:
    stage: Stage
    arm: Arm
    number: int
    dead: bool = False
    url: str = "http://x"

    @property
    def pid(self) -> int:
        return 1000 + self.number

    @property
    def start_id(self) -> str:
        return str(self.number)

    def alive(self) -> bool:
        return not self.dead

    def stop(self) -> None:
        self.stage.events.append(f"-{self.arm}")


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage()
    monkeypatch.setattr(pairs, "start", made.start)
    monkeypatch.setattr(pairs.gpu, "used_bytes", lambda _cards: None)
    return made


def plan(residency: Literal["both", "alternate"], gpu: bool = False) -> Plan:
    def arm(name: Arm) -> ArmPlan:
        return ArmPlan(
            arm=name,
            kind="command",
            argv=("x",),
            env={},
            url="http://x",
            model="",
            checkpoint="m",
            checkpoint_digest=None,
        )

    recipe = recipes.parse(
        {
            "schema_version": 1,
            "name": "small",
            "gpu": gpu,
            "checkpoint": {"path": "m"},
            "workload": {"prompt_tokens": 8, "output_tokens": 4},
            "protocol": {"concurrency": [1, 2], "repetitions": 2, "residency": residency},
        },
        "t",
    )
    return make_plan(
        recipe,
        coin="oracle",
        seed=0,
        candidate=arm("candidate"),
        oracle=arm("oracle"),
        vocabulary=Vocabulary(size=99),
    )


def row(leg: PlannedLeg, failed: int) -> LegRow:
    return LegRow(
        leg_id=leg.leg_id,
        order=leg.order,
        arm=leg.arm,
        concurrency=leg.concurrency,
        repetition=leg.repetition,
        started_at="x",
        start_ns=0,
        end_ns=1,
        requests=leg.requests,
        failed=failed,
        server_start_id="x",
        identity_before="x",
        identity_after="x",
        lock_held=True,
    )


def opened(residency: Literal["both", "alternate"], tmp_path: Path, gpu: bool = False) -> tuple[pairs.Pair, Plan]:
    made = plan(residency, gpu)
    return pairs.Pair(made, tmp_path, lambda _text: None), made


def test_both_stay_up_for_the_whole_run(stage: Stage, tmp_path: Path) -> None:
    pair, made = opened("both", tmp_path)
    with pair:
        for leg in made.legs:
            assert pair.ready(leg).url == "http://x"
            pair.note(row(leg, 0))
        pair.oracle()
    assert stage.events == ["+oracle", "+candidate", "-oracle", "-candidate"]


def test_one_at_a_time_each_block_on_a_fresh_server(stage: Stage, tmp_path: Path) -> None:
    pair, made = opened("alternate", tmp_path)
    with pair:
        for leg in made.legs:
            pair.ready(leg)
        pair.oracle()
    blocks = ["+oracle", "-oracle", "+candidate", "-candidate", "+candidate", "-candidate", "+oracle", "-oracle"]
    assert stage.events == blocks


def test_margins_with_one_at_a_time_stop_the_candidate_first(stage: Stage, tmp_path: Path) -> None:
    pair, made = opened("alternate", tmp_path)
    with pair:
        pair.ready(next(leg for leg in made.legs if leg.arm == "candidate"))
        pair.oracle()
    assert stage.events == ["+candidate", "-candidate", "+oracle", "-oracle"]


@pytest.mark.parametrize(
    ("residency", "events"),
    [
        ("alternate", ["+candidate", "-candidate", "+oracle", "-oracle"]),
        ("both", ["+candidate", "+oracle", "-candidate", "-oracle"]),
    ],
)
def test_one_arm_after_the_other(
    stage: Stage, tmp_path: Path, residency: Literal["both", "alternate"], events: list[str]
) -> None:
    pair, _ = opened(residency, tmp_path)
    with pair:
        assert pair.alone("candidate") is pair.alone("candidate")
        pair.alone("oracle")
    assert stage.events == events


@pytest.mark.parametrize("way", ["dead", "all failed"])
def test_broken_arm_is_restarted_once_and_then_given_up(stage: Stage, tmp_path: Path, way: str) -> None:
    pair, made = opened("both", tmp_path)

    def break_every_leg() -> None:
        for leg in (leg for leg in made.legs if leg.arm == "candidate"):
            server = pair.ready(leg)
            if way == "dead":
                assert isinstance(server, FakeServer)
                server.dead = True
            pair.note(row(leg, leg.requests if way == "all failed" else 0))

    with pair, pytest.raises(ArmError, match=r"the candidate .* again after a restart; its log is .*candidate\.log"):
        break_every_leg()
    assert stage.events.count("+candidate") == 2
    assert stage.events.count("+oracle") == stage.events.count("-oracle") == 1


def test_some_failed_requests_restart_nothing(stage: Stage, tmp_path: Path) -> None:
    pair, made = opened("both", tmp_path)
    with pair:
        for leg in made.legs:
            pair.ready(leg)
            pair.note(row(leg, leg.requests - 1))
    assert stage.events.count("+candidate") == 1


def test_gpu_memory_must_come_back(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([2**30, 60 * 2**30, 60 * 2**30])
    monkeypatch.setattr(pairs.gpu, "used_bytes", lambda _cards: next(readings, 60 * 2**30))
    monkeypatch.setattr(pairs, "GPU_RETURN_S", 0.0)
    pair, made = opened("both", tmp_path, gpu=True)
    pair.ready(made.legs[0])
    with pytest.raises(ArmError, match=r"60\.00 GiB of GPU memory in use .* expected 1\.00 GiB, as before"):
        pair.stop_all()
    assert stage.events[-1].startswith("-")


@pytest.mark.usefixtures("stage")
def test_gpu_memory_of_other_cards_is_another_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on the other GPU of a host, which began meanwhile: 64 GiB of it once ended a run that was complete."""
    held = {"GPU-a": iter([2**30, 64 * 2**30]), "GPU-b": iter([2**30, 2**30])}
    monkeypatch.setattr(lock.gpu, "gpus", lambda: tuple(Gpu(i, "H200", uuid, None) for i, uuid in enumerate(held)))
    monkeypatch.setattr(pairs.gpu, "used_bytes", lambda cards: sum(next(held[card]) for card in cards))
    monkeypatch.setattr(pairs, "GPU_RETURN_S", 0.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # of the shell; the servers get the plan's
    made = plan("both", True)
    arms = {name: made.arm(name).model_copy(update={"env": {"CUDA_VISIBLE_DEVICES": "1"}}) for name in ARMS}
    pair = pairs.Pair(made.model_copy(update=arms), tmp_path, lambda _text: None)
    pair.ready(made.legs[0])
    pair.stop_all()
    assert next(held["GPU-b"], None) is None


@pytest.mark.usefixtures("stage")
def test_a_run_without_a_gpu_looks_at_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock.gpu, "gpus", lambda: (Gpu(0, "H200", "GPU-a", None),))
    readings = iter([2**30, 64 * 2**30])
    monkeypatch.setattr(pairs.gpu, "used_bytes", lambda cards: next(readings) if cards else None)
    monkeypatch.setattr(pairs, "GPU_RETURN_S", 0.0)
    pair, made = opened("both", tmp_path)
    pair.ready(made.legs[0])
    pair.stop_all()
    assert len(list(readings)) == 2


def test_gpu_memory_is_waited_for(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([2**30, 60 * 2**30, 30 * 2**30])
    monkeypatch.setattr(pairs.gpu, "used_bytes", lambda _cards: next(readings, 2**30))
    pair, made = opened("both", tmp_path, gpu=True)
    pair.ready(made.legs[0])
    pair.stop_all()
    assert len(stage.events) == 4


def test_a_vllm_that_reports_another_version_than_the_pin_ends_the_run_and_is_stopped(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def other_version(url: str, platform: str) -> None:
        asked.append((url, platform))
        raise OracleError("vllm 0.24.0 answers", expected="0.25.0")

    monkeypatch.setattr(pairs, "verify_running", other_version)
    small = plan("both")
    pinned = small.model_copy(update={"oracle": small.oracle.model_copy(update={"kind": "vllm"})})
    with (
        pytest.raises(OracleError, match=r"0\.24\.0 answers; expected 0\.25\.0"),
        pairs.Pair(pinned, tmp_path, str) as pair,
    ):
        pair.ready(pinned.legs[0])
    assert asked == [("http://x", "cuda")]
    assert [event for event in stage.events if event.endswith("oracle")] == ["+oracle", "-oracle"]


@pytest.mark.usefixtures("stage")
def test_a_stop_that_fails_does_not_hide_what_ended_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(_self: FakeServer) -> None:
        raise ArmError("port 1 is still taken")

    monkeypatch.setattr(FakeServer, "stop", stuck)
    said: list[str] = []
    made = plan("both")

    def run(cause: ArmError | None) -> None:
        with pairs.Pair(made, tmp_path, said.append) as pair:
            pair.ready(made.legs[0])
            if cause is not None:
                raise cause

    with pytest.raises(ArmError, match="the cause"):
        run(ArmError("the cause"))
    assert said[-1] == "port 1 is still taken"
    with pytest.raises(ArmError, match="port 1"):
        run(None)


@pytest.mark.usefixtures("stage")
def test_the_watcher_keeps_no_lock_of_a_run_that_is_over(tmp_path: Path) -> None:
    """Its descriptors are closed after the run: the next server of this process could not be started with them."""
    with pairs.Pair(plan("both"), tmp_path, print, (123456,)):
        assert pairs.GUARD.keep == (123456,)
    assert pairs.GUARD.keep == ()


@pytest.mark.usefixtures("stage")
def test_an_interrupt_is_told_before_the_servers_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping a deaf server takes half a minute: who waits must know, and that a second Ctrl-C cuts it short."""
    said: list[str] = []
    stop = FakeServer.stop

    def stops(server: FakeServer) -> None:
        said.append("stopped")
        stop(server)

    monkeypatch.setattr(FakeServer, "stop", stops)
    made = plan("both")

    def run() -> None:
        with pairs.Pair(made, tmp_path, said.append) as pair:
            pair.ready(made.legs[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert said[-3:] == [messages.INTERRUPTED, "stopped", "stopped"]


@pytest.mark.usefixtures("stage")
def test_an_interrupt_of_the_end_waits_until_the_servers_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the work's end would be left with both of them up."""
    stopped: list[Arm] = []
    monkeypatch.setattr(FakeServer, "stop", lambda server: stopped.append(server.arm))
    stop_all = pairs.Pair.stop_all

    def interrupted(pair: pairs.Pair) -> None:
        signal.raise_signal(signal.SIGINT)
        stop_all(pair)

    monkeypatch.setattr(pairs.Pair, "stop_all", interrupted)
    made = plan("both")

    def run() -> None:
        with pairs.Pair(made, tmp_path, print) as pair:
            pair.ready(made.legs[0])

    with pytest.raises(KeyboardInterrupt):
        run()
    assert sorted(stopped) == ["candidate", "oracle"]
