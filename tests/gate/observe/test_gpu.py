"""NVML, made of plain values: which cards are the run's, who uses them, what of a throttle mask counts."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gate.observe import gpu
from gate.observe import sampler as samplers
from gate.observe.sampler import Sampler


class Card(SimpleNamespace):
    """A handle that answers for itself."""


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> list[Card]:
    there = [
        Card(uuid="GPU-a", sm=1980, used=7 * 2**30, users={}),
        Card(uuid="GPU-b", sm=1200, used=3 * 2**30, users={}),
    ]

    @contextlib.contextmanager
    def session() -> Iterator[list[Any]]:
        yield list(there)

    def running(card: Card) -> list[Any]:
        if card.users is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in card.users.items()]

    monkeypatch.setattr(gpu, "session", session)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda card: card.uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda card: SimpleNamespace(used=card.used))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", running)
    monkeypatch.setattr(
        gpu, "READINGS", {"sm_clock_mhz": lambda card: card.sm, "memory_used_bytes": lambda card: card.used}
    )
    monkeypatch.setattr(gpu, "CLOCKS", ("sm_clock_mhz",))
    return there


@pytest.mark.usefixtures("cards")
def test_only_the_runs_own_cards_are_read() -> None:
    assert gpu.sample(("GPU-b",)) == {"gpu1.sm_clock_mhz": 1200, "gpu1.memory_used_bytes": 3 * 2**30}
    assert gpu.sample(("GPU-a",), gpu.CLOCKS) == {"gpu0.sm_clock_mhz": 1980}
    assert len(gpu.sample()) == 4
    assert (gpu.used_bytes(("GPU-b",)), gpu.used_bytes(None)) == (3 * 2**30, 10 * 2**30)
    assert gpu.used_bytes(("host",)) is None


def test_memory_of_listed_processes_and_of_none(cards: list[Card]) -> None:
    cards[0].users = {1: 5, 2: None}
    cards[1].users = {1: 6, 9: 7}
    users = gpu.users(None)
    assert users == ({1: 5, 2: None}, {1: 6, 9: 7})
    assert gpu.bytes_of(frozenset({1, 3}), users) == 11
    assert gpu.bytes_of(frozenset({2}), users) is None
    assert gpu.bytes_of(frozenset({1, 2}), users) is None
    assert gpu.bytes_of(frozenset({1}), None) is None


def test_a_card_that_does_not_tell_makes_all_of_them_unknown(cards: list[Card]) -> None:
    cards[1].users = None
    assert gpu.users(None) is None
    assert gpu.users(("GPU-a",)) == ({},)


def test_the_sampler_names_strangers_on_the_runs_cards(cards: list[Card]) -> None:
    cards[0].users = {os.getpid(): 5, 2**22 + 1: 5}
    with Sampler("leg", os.getpid(), gpus=("GPU-a",)) as sampler:
        pass
    assert sampler.gpu_foreign_processes == (f"pid {2**22 + 1}",)
    assert sampler.gpu_peak_bytes == 5
    assert {row.value for row in sampler.rows if row.name == "gpu0.sm_clock_mhz"} == {1980}
    assert not [row for row in sampler.rows if row.name.startswith("gpu1")]


def test_both_arms_and_the_gate_are_no_strangers(cards: list[Card]) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        cards[0].users = {os.getpid(): 5, other.pid: 5}
        with Sampler("leg", os.getpid(), (other.pid,), ("GPU-a",)) as sampler:
            pass
    finally:
        other.kill()
        other.wait()
    assert sampler.gpu_foreign_processes == ()


def test_where_an_arm_is_attached_nobody_is_a_stranger(cards: list[Card]) -> None:
    cards[0].users = {os.getpid(): 5, 2**22 + 1: 5}
    with Sampler("leg", os.getpid(), (None,), ("GPU-a",)) as sampler:
        pass
    assert sampler.gpu_foreign_processes is None


def test_a_list_in_another_pid_namespace_accuses_nobody(cards: list[Card]) -> None:
    cards[0].users = {2**22 + 1: 5}
    with Sampler("leg", os.getpid(), gpus=("GPU-a",)) as sampler:
        pass
    assert sampler.gpu_foreign_processes is None


@pytest.mark.usefixtures("cards")
def test_clocks_are_read_more_often_than_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "PERIOD_S", 0.05)
    monkeypatch.setattr(samplers, "GPU_PERIOD_S", 0.01)
    sampler = Sampler("leg", os.getpid(), gpus=("GPU-a",))
    taken: list[bool] = []

    def take(*, whole: bool) -> None:
        taken.append(whole)
        if len(taken) == 10:
            sampler._stop.set()

    monkeypatch.setattr(sampler, "_sample", take)
    with sampler:
        sampler._thread.join()
    assert taken == [True, False, False, False, False, True, False, False, False, False, True]


@pytest.mark.usefixtures("cards")
def test_compute_capability_is_what_a_card_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(card: Card) -> tuple[int, int]:
        if card.uuid == "GPU-b":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return (12, 1)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetCudaComputeCapability", told)
    assert gpu.capabilities() == {"compute_capability_gpu0": "12.1"}


def test_limits_are_what_a_card_tells_and_absent_where_it_does_not(
    cards: list[Card], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(name: str) -> Any:
        def read(card: Card, clock: int | None = None) -> int:
            if (value := getattr(card, name, None)) is None:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return int(value if clock is None else value[clock])

        return read

    cards[0].power, cards[0].application = 700_000, None
    cards[0].most = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerManagementLimit", told("power"))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetApplicationsClock", told("application"))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMaxClockInfo", told("most"))
    assert gpu.limits() == {"power_limit_gpu0": "700 W", "clock_limit_gpu0": "at most 1980 and 2619 MHz"}
    cards[1].application = {pynvml.NVML_CLOCK_SM: 1500, pynvml.NVML_CLOCK_MEM: 2619}
    assert gpu.limits()["clock_limit_gpu1"] == "application 1500 and 2619 MHz"
    assert "power_limit_gpu1" not in gpu.limits()
