"""4 Memory of a server's process tree and of the host, in bytes. Unreadable is None, never 0."""

from __future__ import annotations

from pathlib import Path

import psutil


def tree(pid: int | None) -> tuple[psutil.Process, ...]:
    """The process and everything below it; empty when it is gone or there is none."""
    if pid is None:
        return ()
    try:
        root = psutil.Process(pid)
        return (root, *root.children(recursive=True))
    except psutil.Error:
        return ()


def rss_bytes(processes: tuple[psutil.Process, ...]) -> int | None:
    """Σ resident set; pages shared between the processes count once per process. Costs microseconds."""
    sizes = []
    for process in processes:
        try:
            sizes.append(process.memory_info().rss)
        except psutil.Error:
            continue  # ended since the tree was listed
    return sum(sizes) if sizes else None


def pss_bytes(processes: tuple[psutil.Process, ...]) -> int | None:
    """Σ proportional set: shared pages divided by their users. Walks page tables, 10 ms per 3 GB: not under load."""
    sizes = []
    for process in processes:
        try:
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
        except OSError:
            continue
        sizes += [int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")]
    return sum(sizes) if sizes else None


def own_peaks_bytes(processes: tuple[psutil.Process, ...]) -> int | None:
    """Σ VmHWM: each process's own peak since it began, so an upper bound of what the tree ever held at once."""
    sizes = []
    for process in processes:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        sizes += [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")]
    return sum(sizes) if sizes else None


def available_bytes() -> int:
    """MemAvailable. MemFree was rejected: page cache fills it on any busy machine."""
    return int(psutil.virtual_memory().available)


def cpu_s(processes: tuple[psutil.Process, ...]) -> float:
    """CPU seconds used so far by these processes, user and system."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total
