"""4 Event-loop lag: how late the client's loop turns to what is due; a late loop stamps late.

A kernel timer read as a file descriptor, since the loop's own timers are rounded to 1 ms and the lag that matters
(5 % of an 8 ms TPOT) is smaller.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time

PERIOD_NS = 10_000_000
_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1


class _Spec(ctypes.Structure):
    """struct itimerspec: interval, then first expiry, each as seconds and nanoseconds."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


class LagSampler:
    """Samples every 10 ms between start() and stop(); every missed tick counts with its own lateness."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.lags_ns: list[int] = []
        """One per tick, in order."""
        self._due_ns = 0
        self._fd = -1

    def start(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._due_ns = time.perf_counter_ns() + PERIOD_NS  # CLOCK_MONOTONIC on Linux
        spec = _Spec(0, PERIOD_NS, *divmod(self._due_ns, 1_000_000_000))
        if libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        self._loop.add_reader(self._fd, self._on_tick)

    def stop(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def p99_ms(self) -> float | None:
        """None before the first tick. Nearest rank."""
        if not self.lags_ns:
            return None
        ordered = sorted(self.lags_ns)
        return ordered[-(-99 * len(ordered) // 100) - 1] / 1e6

    def _on_tick(self) -> None:
        now = time.perf_counter_ns()
        expired = int.from_bytes(os.read(self._fd, 8), "little")
        for _ in range(expired):
            self.lags_ns.append(now - self._due_ns)
            self._due_ns += PERIOD_NS
