"""4 What NVML tells about the GPUs; a machine without one is an empty list, a value it withholds is None."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    name: str
    uuid: str
    memory_bytes: int | None


@contextlib.contextmanager
def session() -> Iterator[list[Any]]:
    """Handles of all GPUs; none where the driver library is missing. Nested ones are cheap."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield []
        return
    try:
        yield [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def gpus() -> tuple[Gpu, ...]:
    with session() as handles:
        return tuple(
            Gpu(
                index,
                str(pynvml.nvmlDeviceGetName(handle)),
                str(pynvml.nvmlDeviceGetUUID(handle)),
                _ask(_total_bytes, handle),
            )
            for index, handle in enumerate(handles)
        )


def driver() -> str | None:
    with session() as handles:
        return str(pynvml.nvmlSystemGetDriverVersion()) if handles else None


def process_bytes(pids: frozenset[int]) -> int | None:
    """GPU memory of these processes; None where none is listed: no GPU, another pid namespace, unified memory."""
    found: list[int] = []
    with session() as handles:
        for handle in handles:
            for process in _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []:
                if process.pid in pids and process.usedGpuMemory is not None:
                    found.append(int(process.usedGpuMemory))
    return sum(found) if found else None


def used_bytes() -> int | None:
    """Memory in use on all GPUs together; None without one."""
    with session() as handles:
        used = [_ask(_used_bytes, handle) for handle in handles]
    known = [size for size in used if size is not None]
    return sum(known) if known else None


def sample() -> dict[str, float | None]:
    """One reading of every GPU: "gpu0.sm_clock_mhz" and so on."""
    values: dict[str, float | None] = {}
    with session() as handles:
        for index, handle in enumerate(handles):
            for name, read in READINGS.items():
                values[f"gpu{index}.{name}"] = _ask(read, handle)
    return values


READINGS: dict[str, Callable[[Any], float]] = {
    "sm_clock_mhz": lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_MEM),
    "power_w": lambda h: pynvml.nvmlDeviceGetPowerUsage(h) / 1000,
    "energy_j": lambda h: pynvml.nvmlDeviceGetTotalEnergyConsumption(h) / 1000,
    "temperature_c": lambda h: pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU),
    "utilization_percent": lambda h: pynvml.nvmlDeviceGetUtilizationRates(h).gpu,
    "memory_used_bytes": lambda h: pynvml.nvmlDeviceGetMemoryInfo(h).used,
    "throttle_mask": lambda h: pynvml.nvmlDeviceGetCurrentClocksEventReasons(h),
}
"""name (unit last) -> reading."""


def _total_bytes(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)


def _used_bytes(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def _ask(read: Callable[..., T], *arguments: Any) -> T | None:
    try:
        return read(*arguments)
    except pynvml.NVMLError:
        return None
