"""NVTX ranges: nothing at all when off; steps and layer groups, in balance, when on. A list stands in for nvtx."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine import ranges
from engine.batch import Batch


class Recorder:
    """What nvtx would be told."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def push_range(self, message: str, *, domain: str) -> None:
        assert domain == ranges.DOMAIN
        self.events.append(message)

    def pop_range(self, *, domain: str) -> None:
        assert domain == ranges.DOMAIN
        self.events.append("end")


class FakeRunner:
    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def submit(self, batch: Any) -> Any:
        if self.fails:
            raise RuntimeError("out of memory")
        return ("ran", batch)

    def info(self) -> dict[str, object]:
        return {"device": "fake"}


def batch(*lengths: int) -> Batch:
    segments = tuple(SimpleNamespace(token_ids=(0,) * n) for n in lengths)
    return Batch(1, segments)  # type: ignore[arg-type]


def test_off_means_the_very_same_objects() -> None:
    runner, layers = FakeRunner(), iter([1, 2, 3])
    assert ranges.annotated(runner) is runner
    assert ranges.grouped() is ranges.plain
    assert ranges.plain(layers) is layers


def test_the_switch_brings_nvtx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ranges.SWITCH, "1")
    assert isinstance(ranges.annotated(FakeRunner()), ranges.AnnotatedRunner)
    assert list(ranges.grouped()(range(9))) == list(range(9))  # the real library, without a profiler


def test_a_step_is_one_range_that_says_what_it_does() -> None:
    seen = Recorder()
    runner = ranges.annotated(FakeRunner(), seen)
    for lengths in ((1024,), (1, 1, 1), (1000, 1, 1)):
        assert runner.submit(batch(*lengths)) == ("ran", batch(*lengths))
    assert seen.events == ["prefill 1024", "end", "decode 3", "end", "prefill 1000 decode 2", "end"]
    assert runner.info() == {"device": "fake"}


def test_a_step_that_fails_closes_its_range() -> None:
    seen = Recorder()
    with pytest.raises(RuntimeError, match="out of memory"):
        ranges.annotated(FakeRunner(fails=True), seen).submit(batch(1))
    assert seen.events == ["decode 1", "end"]


def test_layers_come_in_groups_of_four() -> None:
    seen = Recorder()
    for layer in ranges.grouped(seen)(range(6)):
        seen.events.append(str(layer))
    assert seen.events == ["layers 0-3", "0", "1", "2", "3", "end", "layers 4-7", "4", "5", "end"]


def test_a_forward_pass_that_fails_closes_its_group() -> None:
    seen = Recorder()

    def forward() -> None:
        for layer in ranges.grouped(seen)(range(6)):
            if layer == 1:
                raise RuntimeError("kernel")

    with pytest.raises(RuntimeError, match="kernel"):
        forward()
    assert seen.events == ["layers 0-3", "end"]
