"""4 What NVML tells about the GPUs; a machine without one is an empty list, a value it withholds is None."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")
CAPABILITY = "compute_capability_gpu"
Uuids = tuple[str, ...] | None
"""Of the cards that are meant; None: all of them."""


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


def capabilities() -> dict[str, str]:
    """ "compute_capability_gpu0" -> "9.0", what compiled kernels must have been made for."""
    with session() as handles:
        told = {i: _ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle) for i, handle in enumerate(handles)}
    return {f"{CAPABILITY}{i}": f"{found[0]}.{found[1]}" for i, found in told.items() if found is not None}


def limits() -> dict[str, str]:
    """What each card was set to stay below: "power_limit_gpu0" and "clock_limit_gpu0"; without those it does not tell.

    Clocks locked with nvidia-smi -lgc are in no reading of the driver's: what is read is the application clocks and the
    highest that the card allows, of the SMs and of the memory.
    """
    found: dict[str, str] = {}
    with session() as handles:
        for index, handle in enumerate(handles):
            if (milliwatts := _ask(pynvml.nvmlDeviceGetPowerManagementLimit, handle)) is not None:
                found[f"power_limit_gpu{index}"] = f"{milliwatts / 1000:g} W"
            told = [
                f"{words} {sm} and {memory} MHz"
                for words, read in (
                    ("application", pynvml.nvmlDeviceGetApplicationsClock),
                    ("at most", pynvml.nvmlDeviceGetMaxClockInfo),
                )
                if (sm := _ask(read, handle, pynvml.NVML_CLOCK_SM)) is not None
                and (memory := _ask(read, handle, pynvml.NVML_CLOCK_MEM)) is not None
            ]
            if told:
                found[f"clock_limit_gpu{index}"] = ", ".join(told)
    return found


def users(uuids: Uuids) -> tuple[dict[int, int | None], ...] | None:
    """Compute processes of each card: pid -> bytes, None where NVML withholds them. None when a card does not tell."""
    with session() as handles:
        listed = [_ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) for handle in _chosen(handles, uuids)]
    if None in listed:
        return None
    return tuple({process.pid: process.usedGpuMemory for process in card or ()} for card in listed)


def bytes_of(pids: frozenset[int], cards: tuple[dict[int, int | None], ...] | None) -> int | None:
    """GPU memory of these processes; None where none is listed: no GPU, another pid namespace, unified memory.

    One that is listed without a figure makes the sum unknown: a part of it would flatter.
    """
    found = [size for card in cards or () for pid, size in card.items() if pid in pids]
    known = [size for size in found if size is not None]
    return sum(known) if known and len(known) == len(found) else None


def used_bytes(uuids: Uuids) -> int | None:
    """Memory in use on these GPUs together; None without one."""
    with session() as handles:
        used = [_ask(_used_bytes, handle) for handle in _chosen(handles, uuids)]
    known = [size for size in used if size is not None]
    return sum(known) if known else None


def sample(uuids: Uuids = None, names: tuple[str, ...] | None = None) -> dict[str, float | None]:
    """One reading of each of these GPUs, of these names or of all: "gpu0.sm_clock_mhz" and so on."""
    values: dict[str, float | None] = {}
    with session() as handles:
        for index, handle in enumerate(handles):
            if _is_one_of(handle, uuids):
                for name in names or READINGS:
                    values[f"gpu{index}.{name}"] = _ask(READINGS[name], handle)
    return values


READINGS: dict[str, Callable[[Any], float]] = {
    "sm_clock_mhz": lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM),
    "utilization_percent": lambda h: pynvml.nvmlDeviceGetUtilizationRates(h).gpu,
    "throttle_mask": lambda h: pynvml.nvmlDeviceGetCurrentClocksEventReasons(h),
    "memory_clock_mhz": lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_MEM),
    "power_w": lambda h: pynvml.nvmlDeviceGetPowerUsage(h) / 1000,
    "power_limit_w": lambda h: pynvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1000,
    "energy_j": lambda h: pynvml.nvmlDeviceGetTotalEnergyConsumption(h) / 1000,
    "temperature_c": lambda h: pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU),
    "memory_used_bytes": lambda h: pynvml.nvmlDeviceGetMemoryInfo(h).used,
}
"""name (unit last) -> reading."""
CLOCKS = ("sm_clock_mhz", "utilization_percent", "throttle_mask")
"""What a leg of a second needs many samples of."""

HELD_BACK = {
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "software thermal slowdown",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hardware thermal slowdown",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
}
"""Reasons that make two legs incomparable. Idle, a power cap under load and pinned clocks are normal."""


def held_back(mask: int) -> tuple[str, ...]:
    """The reasons of a throttle mask that are not normal, in words."""
    return tuple(words for bit, words in HELD_BACK.items() if mask & bit)


def at_power_limit(mask: int) -> bool:
    """Whether a throttle mask names the software power cap: the card lowers its clock to keep its power limit."""
    return bool(mask & pynvml.nvmlClocksEventReasonSwPowerCap)


def _is_one_of(handle: Any, uuids: Uuids) -> bool:
    return uuids is None or _ask(pynvml.nvmlDeviceGetUUID, handle) in uuids


def _chosen(handles: list[Any], uuids: Uuids) -> list[Any]:
    return [handle for handle in handles if _is_one_of(handle, uuids)]


def _total_bytes(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)


def _used_bytes(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def _ask(read: Callable[..., T], *arguments: Any) -> T | None:
    try:
        return read(*arguments)
    except pynvml.NVMLError:
        return None
