"""4 What this machine is, as text: the context without which no number means anything."""

from __future__ import annotations

import os
import platform
import re
import socket
from pathlib import Path

import psutil

from gate.observe import gpu, installed
from gate.observe.source import source
from gate.units import gib

LIBRARIES = ("gate-and-engine", "uvloop", "numpy", "scipy", "pyarrow")
"""Whose versions may move a number of ours."""

GOVERNOR = "cpu_governor"
LIMITS = ("power_limit_gpu", "clock_limit_gpu")
"""Beginnings of what a card was set to stay below, then its index. Not gpu…: they are settings, not another machine."""


def host() -> str:
    """Name of this host, fit for a folder name; GATE_HOST replaces it where hosts get a new name on each start."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", os.environ.get("GATE_HOST") or socket.gethostname()).strip(".-") or "host"


def machine() -> dict[str, str]:
    """Keys are left out where the system does not tell."""
    memory, ours = psutil.virtual_memory(), source()
    facts: dict[str, str | None] = {
        "host": host(),
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": gib(memory.total),
        "kernel": platform.release(),
        "os": platform.freedesktop_os_release().get("PRETTY_NAME") if Path("/etc/os-release").exists() else None,
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
        GOVERNOR: _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "python": platform.python_version(),
        "gpu_driver": gpu.driver(),
        "gate_commit": ours.text() if ours else None,
    }
    for card in gpu.gpus():
        facts[f"gpu{card.index}"] = f"{card.name}, {gib(card.memory_bytes)}"
        facts[f"gpu{card.index}_uuid"] = card.uuid
    facts |= gpu.capabilities() | gpu.limits()
    for library in LIBRARIES:
        facts[library] = installed.version(library)
    return {key: value for key, value in facts.items() if value}


def _cpu_model() -> str | None:
    found = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo") or "", re.MULTILINE)
    return found.group(1) if found else platform.machine() or None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None
