"""The gauge of device memory: what the allocator and the driver know of this process; absent on a CPU, never 0."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pynvml
import pytest

from engine.server import devicememory
from engine.server.metrics import Metrics
from tests.engine.server.fakes import FakeStats

GAUGE = "engine:device_memory_peak_bytes"


class FakeCuda:
    """torch.cuda of two devices, the second unused."""

    def __init__(self, now: int, peak: int, initialized: bool = True) -> None:
        self.now, self.peak, self.initialized = now, peak, initialized

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return 2

    def memory_reserved(self, device: int) -> int:
        return self.now if device == 0 else 0

    def max_memory_reserved(self, device: int) -> int:
        return self.peak if device == 0 else 0


def with_cuda(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda, driver: int | None) -> FakeCuda:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(devicememory, "driver_bytes", lambda: driver)
    return cuda


def scraped() -> str:
    metrics = Metrics("m")
    metrics.watch(FakeStats, {})
    return metrics.render().decode()


@pytest.mark.parametrize(
    ("driver", "peak"),
    [(1500, 2500), (None, 2000), (900, 2000)],
    ids=["context of 500", "the driver names none", "less than this process reserved: not this process"],
)
def test_the_allocator_s_peak_plus_what_lies_outside(
    monkeypatch: pytest.MonkeyPatch, driver: int | None, peak: int
) -> None:
    with_cuda(monkeypatch, FakeCuda(1000, 2000), driver)
    assert f'{GAUGE}{{engine="0",model_name="m"}} {float(peak)}' in scraped()


def test_a_later_peak_is_read_at_each_scrape_and_the_driver_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = with_cuda(monkeypatch, FakeCuda(1000, 1000), 1300)
    read = devicememory.peak_reader()
    monkeypatch.setattr(devicememory, "driver_bytes", lambda: pytest.fail("asked again"))
    assert read() == 1300
    cuda.peak = 5000
    assert read() == 5300


@pytest.mark.parametrize("cuda", [FakeCuda(0, 0), FakeCuda(1, 1, initialized=False)], ids=["nothing", "not begun"])
def test_no_device_memory_is_no_gauge(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> None:
    with_cuda(monkeypatch, cuda, 500)
    assert "device_memory" not in scraped()


def test_without_torch_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert devicememory.peak_reader()() is None
    assert "device_memory" not in scraped()


@pytest.mark.parametrize(
    ("sizes", "found"), [((700, 50), 750), ((700, None), None), ((), None)], ids=["two cards", "N/A", "not listed"]
)
def test_the_driver_s_word_is_of_this_process_alone(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int | None, ...], found: int | None
) -> None:
    ours = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=size) for size in sizes]
    other = SimpleNamespace(pid=os.getpid() + 1, usedGpuMemory=9000)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda index: [*ours[index : index + 1], other])
    assert devicememory.driver_bytes() == found


def test_without_a_driver_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    assert devicememory.driver_bytes() is None
