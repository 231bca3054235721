"""3 Nobody else computes on the GPUs of this run."""

from __future__ import annotations

from pathlib import Path

import psutil
import pynvml

from gate import lock
from gate.errors import PreconditionError
from gate.observe import gpu
from gate.observe.rows import Finding
from gate.plan import Plan
from gate.units import GIB, gib

IDLE_BYTES = 2 * GIB
"""Driver and display take less than this on every card seen; more, and something is loaded that no list shows."""


def check(plan: Plan, _out: Path) -> tuple[Finding, ...]:
    """Raises PreconditionError for a foreign compute process, and where NVML cannot tell: silence is not idleness."""
    if not plan.recipe.gpu:
        return ()
    ours = set(lock.keys(plan))
    with gpu.session() as handles:
        for handle in handles:
            uuid = str(pynvml.nvmlDeviceGetUUID(handle))
            if uuid in ours:
                _check_one(uuid, handle)
    return ()


def _check_one(uuid: str, handle: object) -> None:
    try:
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        used_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    except pynvml.NVMLError as error:
        raise PreconditionError(
            f"NVML does not tell what runs on GPU {uuid}: {error}", hint="update the driver"
        ) from error
    if processes:
        raise PreconditionError(
            f"GPU {uuid} is busy: " + ", ".join(_name(process.pid) for process in processes),
            expected="no compute process",
            hint="stop it, or wait for it to end",
        )
    if used_bytes > IDLE_BYTES:
        raise PreconditionError(
            f"GPU {uuid} has {gib(used_bytes)} in use by a process that NVML does not list",
            expected=f"at most {gib(IDLE_BYTES)}",
            hint="look for it outside this container",
        )


def _name(pid: int) -> str:
    try:
        return f"pid {pid} ({psutil.Process(pid).name()})"
    except psutil.Error:
        return f"pid {pid}"
