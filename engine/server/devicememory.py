"""Device memory of this process: what torch's allocator reserved, and what the driver says lies outside of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pynvml


def peak_reader() -> Callable[[], int | None]:
    """To be made once the model is loaded and warmed up; each call then gives the peak so far, in bytes.

    The peak is that of the allocator (every reserved byte, used or not, graphs' pools too) plus what lay outside of it
    when the reader was made: CUDA context, kernels, libraries. The driver is asked for that only once, since a scrape
    runs beside streams; where it names no figure by process (unified memory, another pid namespace) the peak is the
    allocator's alone. None where this process holds no device memory, as on a CPU.
    """
    outside = outside_bytes(driver_bytes(), reserved_bytes()) if peak_reserved_bytes() is not None else 0

    def read() -> int | None:
        peak = peak_reserved_bytes()
        return None if peak is None else peak + outside

    return read


def outside_bytes(driver: int | None, reserved: int | None) -> int:
    """The driver's figure less the allocator's; 0 where it names none, or one that cannot be of this process."""
    return driver - reserved if driver is not None and reserved is not None and driver > reserved else 0


def peak_reserved_bytes() -> int | None:
    """Σ over devices of torch.cuda.max_memory_reserved; None where nothing was ever reserved."""
    return _of_allocator("max_memory_reserved")


def reserved_bytes() -> int | None:
    """Σ over devices of torch.cuda.memory_reserved, now."""
    return _of_allocator("memory_reserved")


def driver_bytes() -> int | None:
    """Σ over GPUs of what NVML names for this process; None where it names none on any."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        listed = [one for handle in handles for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
    sizes = [one.usedGpuMemory for one in listed if one.pid == os.getpid()]
    return sum(sizes) if sizes and None not in sizes else None


def _of_allocator(name: str) -> int | None:
    torch: Any = sys.modules.get("torch")  # not imported for this: who has no torch has nothing on a device
    if torch is None or not torch.cuda.is_initialized():
        return None
    return sum(int(getattr(torch.cuda, name)(index)) for index in range(torch.cuda.device_count())) or None
