"""4 Samples host, server and GPU beside a leg, in a thread of its own, at a rate the client does not feel."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from types import TracebackType

import psutil

from gate.interrupt import deferred
from gate.observe import gpu, memory
from gate.observe.rows import TelemetryRow

PERIOD_S = 0.5
"""Ten processes cost about 1 ms a sample: 0.2 % of a core."""
GPU_PERIOD_S = 0.1
"""Of clocks and throttle bits: three repetitions of a leg of one second then leave the 30 samples that a spread
needs."""
TREE_EVERY = 10
"""Samples between two looks for new children: listing all processes of the machine costs ten times a sample."""
MIN_LOAD_WINDOW_S = 0.5
"""The kernel counts CPU time in ticks of 10 ms; over a shorter window the foreign load would be their noise."""


class Sampler:
    """`with Sampler(leg_id, pid) as s: …` then `s.rows`, `s.peak_rss_bytes`, `s.gpu_peak_bytes`, `s.foreign_cores`."""

    def __init__(
        self, leg_id: str, pid: int | None, others: tuple[int | None, ...] = (), gpus: tuple[str, ...] | None = None
    ) -> None:
        self.leg_id = leg_id
        self.pid = pid
        self.others = others
        """Processes that belong to the run as well: the other arm. None among them: an attached server somewhere."""
        self.gpus = gpus
        """UUIDs of the cards that belong to the run; None: all."""
        self.gpu_foreign_processes: tuple[str, ...] | None = None
        """Names of processes of neither arm seen on them; None where NVML does not list our own server there."""
        self.rows: tuple[TelemetryRow, ...] = ()
        self.peak_rss_bytes: int | None = None
        self.peak_pss_bytes: int | None = None
        """The larger of before and after: walking page tables locks the server's memory map."""
        self.gpu_peak_bytes: int | None = None
        self.least_available_bytes: int | None = None
        self.foreign_cores: float | None = None
        """CPU seconds a second that neither the gate nor an arm used; None for an attached server, which cannot be
        told apart, and for a leg too short to tell."""
        self.other_cores: float | None = None
        """Of that, what the arm not under load used; None where there is no such process."""
        self._known: set[int] = set()
        """Process ids of the gate and of both arms."""
        self._rows: list[TelemetryRow] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._tree = memory.tree(self.pid)
        self._read_pss()
        self._before = time.monotonic(), _busy_s(), self._own_s(), self._other_s()
        try:
            with deferred():  # cut while it waits for the thread, Python's own lock raises an error of its own
                self._thread.start()
        except KeyboardInterrupt:
            self._stop.set()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with deferred():
            self._stop.set()
            self._thread.join()
        now = time.monotonic(), _busy_s(), self._own_s(), self._other_s()
        window_s, busy_s, own_s, other_s = (after - before for after, before in zip(now, self._before, strict=True))
        if self._others() and window_s >= MIN_LOAD_WINDOW_S:
            self.other_cores = max(0.0, other_s) / window_s
        if self.pid is not None and window_s >= MIN_LOAD_WINDOW_S:
            self.foreign_cores = max(0.0, busy_s - own_s) / window_s
        self._read_pss()
        self.rows = tuple(self._rows)

    def _read_pss(self) -> None:
        pss = memory.pss_bytes(self._tree)
        self.peak_pss_bytes = _larger(self.peak_pss_bytes, pss)
        self._add("psutil", {"server_pss_bytes": pss})

    def _run(self) -> None:
        with gpu.session():
            ticks = round(PERIOD_S / GPU_PERIOD_S) if gpu.sample(self.gpus, gpu.CLOCKS) else 1
            for count in itertools.count():
                if count % (ticks * TREE_EVERY) == 0 and count:
                    self._tree = memory.tree(self.pid)
                self._sample(whole=count % ticks == 0)
                if self._stop.wait(PERIOD_S / ticks):
                    break
            self._sample(whole=True)

    def _sample(self, whole: bool) -> None:
        """whole: memory, power and processes too; else the clocks alone."""
        self._add("nvml", gpu.sample(self.gpus, None if whole else gpu.CLOCKS))
        if not whole:
            return
        rss = memory.rss_bytes(self._tree)
        users = gpu.users(self.gpus)
        on_gpu = gpu.bytes_of(frozenset(process.pid for process in self._tree), users)
        self.peak_rss_bytes = _larger(self.peak_rss_bytes, rss)
        self.gpu_peak_bytes = _larger(self.gpu_peak_bytes, on_gpu)
        self._look_for_foreigners(users)
        available = memory.available_bytes()
        self.least_available_bytes = min(available, self.least_available_bytes or available)
        host = {"host_available_bytes": available, "host_load_1min": psutil.getloadavg()[0]}
        self._add("psutil", {**host, "server_rss_bytes": rss, "server_gpu_bytes": on_gpu})

    def _look_for_foreigners(self, cards: tuple[dict[int, int | None], ...] | None) -> None:
        """Only where NVML lists a process of ours does it speak of pids as we do; in a container it often does not.

        An attached server is on the GPU too, and nobody knows by which pid.
        """
        listed = {pid for card in cards or () for pid in card}
        if None in self.others or not listed & {process.pid for process in self._tree}:
            return
        if not listed <= self._known:
            self._known = {process.pid for process in self._ours()}
        seen = {_name(pid) for pid in listed - self._known}
        self.gpu_foreign_processes = tuple(sorted(seen.union(self.gpu_foreign_processes or ())))

    def _add(self, source: str, values: Mapping[str, float | None]) -> None:
        now = time.perf_counter_ns()
        self._rows += [
            TelemetryRow(leg_id=self.leg_id, t_ns=now, source=source, name=name, value=value)
            for name, value in values.items()
        ]

    def _others(self) -> tuple[psutil.Process, ...]:
        """The arm not under load, with everything below it."""
        pids = {pid for pid in self.others if pid not in (None, self.pid)}
        return tuple(process for pid in pids for process in memory.tree(pid))

    def _other_s(self) -> float:
        return memory.cpu_s(self._others())

    def _own_s(self) -> float:
        """CPU seconds of the gate and of both arms with everything below them."""
        return memory.cpu_s(self._ours())

    def _ours(self) -> tuple[psutil.Process, ...]:
        trees = [memory.tree(pid) for pid in {self.pid, *self.others}]
        return tuple({p.pid: p for processes in (*trees, (psutil.Process(),)) for p in processes}.values())


def _busy_s() -> float:
    """CPU seconds that processes used on the whole machine, since boot.

    Interrupt time is left out: most of it is our own streams on the loopback device, and no process is billed for it.
    """
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def _name(pid: int) -> str:
    try:
        return f"pid {pid} ({psutil.Process(pid).name()})"
    except psutil.Error:
        return f"pid {pid}"


def _larger(a: int | None, b: int | None) -> int | None:
    return max((x for x in (a, b) if x is not None), default=None)
